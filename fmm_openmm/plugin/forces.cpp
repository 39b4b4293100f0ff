#include "forces.h"

#include <cmath>
#include <map>
#include <memory>

#include "OpenMM.h"
#include "lepton/CustomFunction.h"
#include "lepton/ParsedExpression.h"
#include "lepton/Parser.h"
#include "openmm/reference/ReferenceTabulatedFunction.h"

using namespace OpenMM;

namespace fmm {

static const size_t MOST_TYPES = 300;      // of a CustomNonbondedForce: every pair of them is tried
static const double SAME = 1e-9;           // relative error to which a function is of the form asked for

template <class... Kinds>
static bool isOneOf(const Force& force) {
    return ((dynamic_cast<const Kinds*>(&force) != nullptr) || ...);
}

bool addsByAtomics(const Force& force) {
    if (auto* nonbonded = dynamic_cast<const NonbondedForce*>(&force))
        return nonbonded->getNonbondedMethod() <= NonbondedForce::CutoffPeriodic;  // Ewald and PME may not
    return isOneOf<HarmonicBondForce, HarmonicAngleForce, PeriodicTorsionForce, RBTorsionForce, CMAPTorsionForce,
                   CustomBondForce, CustomAngleForce, CustomTorsionForce, CustomCompoundBondForce, CustomCentroidBondForce,
                   CustomNonbondedForce, CustomHbondForce, CustomExternalForce, CMMotionRemover, AndersenThermostat,
                   MonteCarloBarostat, MonteCarloAnisotropicBarostat, MonteCarloMembraneBarostat,
                   MonteCarloFlexibleBarostat>(force);
}

std::string obstacleOf(const NonbondedForce& force) {
    const auto method = force.getNonbondedMethod();
    if (method == NonbondedForce::LJPME) return "its dispersion is LJPME's";
    if (method > NonbondedForce::CutoffPeriodic) return "its method is Ewald or PME";
    if (!force.getIncludeDirectSpace()) return "its direct space is left out";
    double charge, sigma, epsilon;
    for (int i = 0; i < force.getNumParticles(); i++) {
        force.getParticleParameters(i, charge, sigma, epsilon);
        if (charge != 0) return "it holds charges";
    }
    for (int k = 0; k < force.getNumParticleParameterOffsets(); k++) {
        std::string parameter;
        int particle;
        force.getParticleParameterOffset(k, parameter, particle, charge, sigma, epsilon);
        if (charge != 0) return "it holds offsets of charges";
    }
    return "";
}

// An energy function of the distance and the parameters of two particles.
class EnergyFunction {
public:
    explicit EnergyFunction(const CustomNonbondedForce& force) {
        std::vector<std::unique_ptr<Lepton::CustomFunction>> owned;
        std::map<std::string, Lepton::CustomFunction*> functions;
        for (int i = 0; i < force.getNumTabulatedFunctions(); i++) {
            owned.emplace_back(createReferenceTabulatedFunction(force.getTabulatedFunction(i)));
            functions[force.getTabulatedFunctionName(i)] = owned.back().get();
        }
        expression = Lepton::Parser::parse(force.getEnergyFunction(), functions).optimize();
        for (int i = 0; i < force.getNumPerParticleParameters(); i++) names.push_back(force.getPerParticleParameterName(i));
    }
    void setParticles(const std::vector<double>& first, const std::vector<double>& second) {
        for (size_t i = 0; i < names.size(); i++) {
            variables[names[i] + "1"] = first[i];
            variables[names[i] + "2"] = second[i];
        }
    }
    double at(double r) {
        variables["r"] = r;
        return expression.evaluate(variables);
    }

private:
    Lepton::ParsedExpression expression;
    std::vector<std::string> names;
    std::map<std::string, double> variables;
};

// A and B, if the energy of the two particles is A / r^12 - B / r^6.
static bool findCoefficients(EnergyFunction& energy, double& a, double& b) {
    const double far = energy.at(1.0);
    a = (energy.at(0.1) - 1e6 * far) / (1e12 - 1e6);
    b = a - far;
    for (double r : {0.15, 0.33, 0.71, 2.3}) {
        const double sixth = std::pow(r, -6), found = energy.at(r);
        if (!(std::fabs(found - (a * sixth - b) * sixth) <= SAME * (std::fabs(a) * sixth + std::fabs(b)) * sixth)) return false;
    }
    return true;
}

std::string obstacleOf(const CustomNonbondedForce& force, Interaction& interaction, std::vector<int>& types) {
    if (force.getNumInteractionGroups() > 0) return "it has interaction groups";
    if (force.getNumGlobalParameters() > 0) return "it has global parameters";
    if (force.getNumComputedValues() > 0) return "it has computed values";
    std::map<std::vector<double>, int> known;
    std::vector<std::vector<double>> parameters;
    types.clear();
    for (int i = 0; i < force.getNumParticles(); i++) {
        std::vector<double> own;
        force.getParticleParameters(i, own);
        const auto [at, isNew] = known.emplace(own, known.size());
        if (isNew) parameters.push_back(own);
        if (known.size() > MOST_TYPES) return "its particles have more than " + std::to_string(MOST_TYPES) + " sets of parameters";
        types.push_back(at->second);
    }
    const int count = parameters.size();
    std::vector<double> a(count * count), b(count * count);
    EnergyFunction energy(force);
    for (int i = 0; i < count; i++)
        for (int j = 0; j <= i; j++) {
            double &aij = a[i * count + j], &bij = b[i * count + j];
            energy.setParticles(parameters[j], parameters[i]);
            const double near = energy.at(0.15), far = energy.at(1.0);
            energy.setParticles(parameters[i], parameters[j]);
            const double size = SAME * (std::fabs(near) + std::fabs(far));
            if (!findCoefficients(energy, aij, bij)) return "its energy is not A/r^12 - B/r^6";
            if (!(std::fabs(energy.at(0.15) - near) <= size && std::fabs(energy.at(1.0) - far) <= size))
                return "its energy depends on the order of particles";
            a[j * count + i] = aij;
            b[j * count + i] = bij;
        }
    // sites are the particles that interact with some other
    std::vector<int> site(count, -1), kept;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count && site[i] < 0; j++)
            if (a[i * count + j] != 0 || b[i * count + j] != 0) {
                site[i] = kept.size();
                kept.push_back(i);
            }
    interaction.types = kept.size();
    interaction.repulsion.clear();
    interaction.attraction.clear();
    for (int i : kept)
        for (int j : kept) {
            interaction.repulsion.push_back(a[i * count + j]);
            interaction.attraction.push_back(b[i * count + j]);
        }
    std::vector<int> siteTypes;
    for (int type : types) siteTypes.push_back(site[type]);
    std::vector<std::pair<int, int>> excluded(force.getNumExclusions());
    for (int k = 0; k < (int) excluded.size(); k++) force.getExclusionParticles(k, excluded[k].first, excluded[k].second);
    interaction.setSites(siteTypes, excluded);
    const auto method = force.getNonbondedMethod();
    interaction.periodic = method == CustomNonbondedForce::CutoffPeriodic;
    interaction.cutoff = method == CustomNonbondedForce::NoCutoff ? 0 : force.getCutoffDistance();
    interaction.switching = interaction.cutoff > 0 && force.getUseSwitchingFunction() ? force.getSwitchingDistance() : 0;
    return "";
}

std::string forceWithList(ContextImpl& context, const Force& force) {
    const System& system = context.getSystem();
    for (int i = 0; i < system.getNumForces(); i++) {
        const Force& other = system.getForce(i);
        bool lists = isOneOf<CustomGBForce, GBSAOBCForce, ConstantPotentialForce>(other);
        if (auto* nonbonded = dynamic_cast<const NonbondedForce*>(&other)) lists = !obstacleOf(*nonbonded).empty();
        if (auto* custom = dynamic_cast<const CustomNonbondedForce*>(&other)) {
            Interaction unused;
            std::vector<int> types;
            lists = custom->getNumInteractionGroups() == 0 && !obstacleOf(*custom, unused, types).empty();
        }
        if (lists && &other != &force) return other.getName();
    }
    return dynamic_cast<const DPDIntegrator*>(&context.getIntegrator()) ? "DPDIntegrator" : "";
}

}  // namespace fmm
