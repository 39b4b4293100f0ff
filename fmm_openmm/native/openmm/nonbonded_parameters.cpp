#include "nonbonded_parameters.h"

#include <cmath>

#include "force_survey.h"
#include "identities.h"
#include "openmm/reference/SimTKOpenMMRealType.h"

using namespace OpenMM;

namespace fmm {

NonbondedParameters::PairParameters NonbondedParameters::PairParameters::at(
    const std::vector<double>& values) const {
    PairParameters found = {charge, sigma, epsilon, {}};
    for (const auto& offset : offsets) {
        found.charge += values[offset.parameter] * offset.charge;
        found.sigma += values[offset.parameter] * offset.sigma;
        found.epsilon += values[offset.parameter] * offset.epsilon;
    }
    return found;
}

std::vector<double> NonbondedParameters::PairParameters::flattened() const {
    std::vector<double> found = {charge, sigma, epsilon};
    for (const auto& offset : offsets)
        found.insert(found.end(),
                     {(double)offset.parameter, offset.charge, offset.sigma, offset.epsilon});
    return found;
}

NonbondedParameters::NonbondedParameters(const NonbondedForce& force,
                                         const NonbondedParameters& previous)
    : names(previous.names), values(previous.names.size()) {
    readParticles(force);
    readExceptions(force, previous);
    interaction.setDistances(force);
    interaction.types = types.size();
    interaction.setSites(typeOfParticle, excluded);
}

std::string NonbondedParameters::obstacle() const {
    return types.size() > MAX_TYPES
               ? "its sites are of more than " + std::to_string(MAX_TYPES) + " types"
               : "";
}

int NonbondedParameters::numberOf(const std::string& parameter) {
    for (size_t k = 0; k < names.size(); k++)
        if (names[k] == parameter) return k;
    names.push_back(parameter);
    values.push_back(0);
    return names.size() - 1;
}

template <class Read>
std::map<int, std::vector<NonbondedParameters::Offset>> NonbondedParameters::readOffsets(
    int count, Read read) {
    std::map<int, std::vector<Offset>> found;
    for (int k = 0; k < count; k++) {
        std::string parameter;
        int index;
        Offset offset;
        read(k, parameter, index, offset);
        offset.parameter = numberOf(parameter);
        found[index].push_back(offset);
    }
    return found;
}

void NonbondedParameters::readParticles(const NonbondedForce& force) {
    const auto offsets =
        readOffsets(force.getNumParticleParameterOffsets(),
                    [&](int k, std::string& name, int& i, Offset& offset) {
                        force.getParticleParameterOffset(k, name, i, offset.charge, offset.sigma,
                                                         offset.epsilon);
                    });
    Numbering numbering;
    for (int i = 0; i < force.getNumParticles(); i++) {
        PairParameters particle;
        force.getParticleParameters(i, particle.charge, particle.sigma, particle.epsilon);
        bool isSite = particle.epsilon != 0;
        const auto found = offsets.find(i);
        if (found != offsets.end()) {
            particle.offsets = found->second;
            for (const auto& offset : particle.offsets) isSite = isSite || offset.epsilon != 0;
        }
        typeOfParticle.push_back(isSite ? numbering.numberOf(particle.flattened()) : -1);
        if (typeOfParticle.back() == (int)types.size()) types.push_back(particle);
    }
}

void NonbondedParameters::readExceptions(const NonbondedForce& force,
                                         const NonbondedParameters& previous) {
    const auto offsets =
        readOffsets(force.getNumExceptionParameterOffsets(),
                    [&](int k, std::string& name, int& i, Offset& offset) {
                        force.getExceptionParameterOffset(k, name, i, offset.charge, offset.sigma,
                                                          offset.epsilon);
                    });
    Numbering numbering;
    for (int k = 0; k < force.getNumExceptions(); k++) {
        int first, second;
        PairParameters particle;
        force.getExceptionParameters(k, first, second, particle.charge, particle.sigma,
                                     particle.epsilon);
        const auto found = offsets.find(k);
        if (found != offsets.end()) particle.offsets = found->second;
        const bool counted =
            k < (int)previous.exceptionKinds.size() && previous.exceptionKinds[k] >= 0;
        const bool counts =
            counted || particle.charge != 0 || particle.epsilon != 0 || !particle.offsets.empty();
        excluded.emplace_back(first, second);
        exceptionKinds.push_back(counts ? numbering.numberOf(particle.flattened()) : -1);
        if (!counts) continue;
        exceptions.push_back(particle);
        exceptionPairs.push_back({first, second});
    }
}

bool NonbondedParameters::setValues(ContextImpl& context) {
    std::vector<double> current;
    for (const auto& name : names) current.push_back(context.getParameter(name));
    if (known && current == values) return false;
    values = current;
    known = true;
    combine();
    return true;
}

// Combines types by the Lorentz-Berthelot rule.
void NonbondedParameters::combine() {
    interaction.repulsion.clear();
    interaction.attraction.clear();
    std::vector<PairParameters> current;
    for (const auto& type : types) current.push_back(type.at(values));
    for (const auto& a : current)
        for (const auto& b : current) {
            const double sixth = std::pow(0.5 * (a.sigma + b.sigma), 6),
                         fourEpsilon = 4 * std::sqrt(a.epsilon * b.epsilon);
            interaction.repulsion.push_back(fourEpsilon * sixth * sixth);
            interaction.attraction.push_back(fourEpsilon * sixth);
        }
}

std::vector<double> NonbondedParameters::exceptionData() const {
    std::vector<double> data;
    for (const auto& exception : exceptions) {
        const PairParameters current = exception.at(values);
        data.insert(data.end(),
                    {ONE_4PI_EPS0 * current.charge, current.sigma, 4 * current.epsilon, 0.0});
    }
    return data;
}

}  // namespace fmm
