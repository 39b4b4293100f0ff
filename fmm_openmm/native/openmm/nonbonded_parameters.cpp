#include "nonbonded_parameters.h"

#include <cmath>

#include "force_survey.h"
#include "identities.h"
#include "openmm/reference/SimTKOpenMMRealType.h"

using namespace OpenMM;

namespace fmm {

NonbondedParameters::Own NonbondedParameters::Own::at(const std::vector<double>& values) const {
    Own found = {charge, sigma, epsilon, {}};
    for (const auto& offset : offsets) {
        found.charge += values[offset.parameter] * offset.charge;
        found.sigma += values[offset.parameter] * offset.sigma;
        found.epsilon += values[offset.parameter] * offset.epsilon;
    }
    return found;
}

std::vector<double> NonbondedParameters::Own::all() const {
    std::vector<double> found = {charge, sigma, epsilon};
    for (const auto& offset : offsets)
        found.insert(found.end(),
                     {(double)offset.parameter, offset.charge, offset.sigma, offset.epsilon});
    return found;
}

NonbondedParameters::NonbondedParameters(const NonbondedForce& force,
                                         const NonbondedParameters& before)
    : names(before.names), values(before.names.size()) {
    readParticles(force);
    readExceptions(force, before);
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
        Own own;
        force.getParticleParameters(i, own.charge, own.sigma, own.epsilon);
        bool isSite = own.epsilon != 0;
        const auto found = offsets.find(i);
        if (found != offsets.end()) {
            own.offsets = found->second;
            for (const auto& offset : own.offsets) isSite = isSite || offset.epsilon != 0;
        }
        typeOfParticle.push_back(isSite ? numbering.of(own.all()) : -1);
        if (typeOfParticle.back() == (int)types.size()) types.push_back(own);
    }
}

void NonbondedParameters::readExceptions(const NonbondedForce& force,
                                         const NonbondedParameters& before) {
    const auto offsets =
        readOffsets(force.getNumExceptionParameterOffsets(),
                    [&](int k, std::string& name, int& i, Offset& offset) {
                        force.getExceptionParameterOffset(k, name, i, offset.charge, offset.sigma,
                                                          offset.epsilon);
                    });
    Numbering numbering;
    for (int k = 0; k < force.getNumExceptions(); k++) {
        int first, second;
        Own own;
        force.getExceptionParameters(k, first, second, own.charge, own.sigma, own.epsilon);
        const auto found = offsets.find(k);
        if (found != offsets.end()) own.offsets = found->second;
        const bool counted = k < (int)before.exceptionKinds.size() && before.exceptionKinds[k] >= 0;
        const bool counts = counted || own.charge != 0 || own.epsilon != 0 || !own.offsets.empty();
        excluded.emplace_back(first, second);
        exceptionKinds.push_back(counts ? numbering.of(own.all()) : -1);
        if (!counts) continue;
        exceptions.push_back(own);
        exceptionPairs.push_back({first, second});
    }
}

bool NonbondedParameters::setValues(ContextImpl& context) {
    std::vector<double> now;
    for (const auto& name : names) now.push_back(context.getParameter(name));
    if (known && now == values) return false;
    values = now;
    known = true;
    combine();
    return true;
}

// Pairs of types, by the rule of Lorentz and Berthelot.
void NonbondedParameters::combine() {
    interaction.repulsion.clear();
    interaction.attraction.clear();
    std::vector<Own> now;
    for (const auto& type : types) now.push_back(type.at(values));
    for (const auto& a : now)
        for (const auto& b : now) {
            const double sixth = std::pow(0.5 * (a.sigma + b.sigma), 6),
                         depth = 4 * std::sqrt(a.epsilon * b.epsilon);
            interaction.repulsion.push_back(depth * sixth * sixth);
            interaction.attraction.push_back(depth * sixth);
        }
}

std::vector<double> NonbondedParameters::exceptionData() const {
    std::vector<double> data;
    for (const auto& exception : exceptions) {
        const Own now = exception.at(values);
        data.insert(data.end(), {ONE_4PI_EPS0 * now.charge, now.sigma, 4 * now.epsilon, 0.0});
    }
    return data;
}

}  // namespace fmm
