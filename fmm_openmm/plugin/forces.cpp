#include "forces.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "OpenMM.h"
#include "lepton/CustomFunction.h"
#include "lepton/ExpressionTreeNode.h"
#include "lepton/Operation.h"
#include "lepton/ParsedExpression.h"
#include "lepton/Parser.h"
#include "openmm/reference/ReferenceTabulatedFunction.h"

using namespace OpenMM;

namespace fmm {

static const size_t MAX_PARAMETER_SETS = 300;  // of a CustomNonbondedForce: every pair of them is tried
static const double MAX_DEVIATION = 1e-9;      // relative, of an energy from the form asked for

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

template <class Nonbonded>
static bool switchesFromZero(const Nonbonded& force) {
    return force.getUseSwitchingFunction() && force.getSwitchingDistance() <= 0;
}

std::string obstacleOf(const NonbondedForce& force) {
    const auto method = force.getNonbondedMethod();
    if (method == NonbondedForce::LJPME) return "its dispersion is LJPME's";
    if (method > NonbondedForce::CutoffPeriodic) return "its method is Ewald or PME";
    if (!force.getIncludeDirectSpace()) return "its direct space is left out";
    if (switchesFromZero(force)) return "its switching function begins at 0";
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

// An energy function of the distance r and the parameters of two particles.
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

    // Whether only arithmetic is done with r, so that a few distances tell what the function is at all others.
    bool isRational() const { return isRational(expression.getRootNode()); }

private:
    static bool dependsOnDistance(const Lepton::ExpressionTreeNode& node) {
        const auto& children = node.getChildren();
        return (node.getOperation().getId() == Lepton::Operation::VARIABLE && node.getOperation().getName() == "r") ||
               std::any_of(children.begin(), children.end(), dependsOnDistance);
    }
    static bool isRational(const Lepton::ExpressionTreeNode& node) {
        using Lepton::Operation;
        static const std::set<Operation::Id> arithmetic = {
            Operation::VARIABLE, Operation::ADD, Operation::SUBTRACT, Operation::MULTIPLY, Operation::DIVIDE, Operation::NEGATE,
            Operation::SQUARE, Operation::CUBE, Operation::RECIPROCAL, Operation::ADD_CONSTANT, Operation::MULTIPLY_CONSTANT,
            Operation::POWER_CONSTANT};
        if (!dependsOnDistance(node)) return true;
        const auto& children = node.getChildren();
        return arithmetic.count(node.getOperation().getId()) &&
               std::all_of(children.begin(), children.end(), [](const auto& child) { return isRational(child); });
    }

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
        if (!(std::fabs(found - (a * sixth - b) * sixth) <= MAX_DEVIATION * (std::fabs(a) * sixth + std::fabs(b)) * sixth))
            return false;
    }
    return true;
}

// The sets of parameters that particles of a CustomNonbondedForce have, and A and B for every two of them.
struct ParameterSets {
    std::vector<std::vector<double>> sets;
    std::vector<int> ofParticle;
    std::vector<double> a, b;      // (sets, sets)

    // False if there are too many.
    bool read(const CustomNonbondedForce& force) {
        std::map<std::vector<double>, int> known;
        for (int i = 0; i < force.getNumParticles(); i++) {
            std::vector<double> own;
            force.getParticleParameters(i, own);
            const auto [at, isNew] = known.emplace(own, known.size());
            if (isNew) sets.push_back(own);
            if (sets.size() > MAX_PARAMETER_SETS) return false;
            ofParticle.push_back(at->second);
        }
        return true;
    }

    // Why there are no such coefficients, or nothing.
    std::string findAll(const CustomNonbondedForce& force) {
        const int count = sets.size();
        a.resize(count * count);
        b.resize(count * count);
        EnergyFunction energy(force);
        if (!energy.isRational()) return "its energy is not A/r^12 - B/r^6";
        for (int i = 0; i < count; i++)
            for (int j = 0; j <= i; j++) {
                double &aij = a[i * count + j], &bij = b[i * count + j];
                energy.setParticles(sets[j], sets[i]);
                const double near = energy.at(0.15), far = energy.at(1.0);
                energy.setParticles(sets[i], sets[j]);
                const double size = MAX_DEVIATION * (std::fabs(near) + std::fabs(far));
                if (!findCoefficients(energy, aij, bij)) return "its energy is not A/r^12 - B/r^6";
                if (!(std::fabs(energy.at(0.15) - near) <= size && std::fabs(energy.at(1.0) - far) <= size))
                    return "its energy depends on the order of particles";
                a[j * count + i] = aij;
                b[j * count + i] = bij;
            }
        return "";
    }

    // Types of sites: the sets of particles that interact with some other.
    void makeTypes(Interaction& interaction, std::vector<int>& typeOfParticle) const {
        const int count = sets.size();
        std::vector<int> type(count, -1), kept;
        for (int i = 0; i < count; i++)
            for (int j = 0; j < count && type[i] < 0; j++)
                if (a[i * count + j] != 0 || b[i * count + j] != 0) {
                    type[i] = kept.size();
                    kept.push_back(i);
                }
        interaction.types = kept.size();
        for (int i : kept)
            for (int j : kept) {
                interaction.repulsion.push_back(a[i * count + j]);
                interaction.attraction.push_back(b[i * count + j]);
            }
        for (int own : ofParticle) typeOfParticle.push_back(type[own]);
    }
};

static std::string readSets(const CustomNonbondedForce& force, ParameterSets& sets) {
    if (force.getNumInteractionGroups() > 0) return "it has interaction groups";
    if (force.getNumGlobalParameters() > 0) return "it has global parameters";
    if (force.getNumComputedValues() > 0) return "it has computed values";
    if (switchesFromZero(force)) return "its switching function begins at 0";
    if (!sets.read(force)) return "its particles have more than " + std::to_string(MAX_PARAMETER_SETS) + " sets of parameters";
    return sets.findAll(force);
}

std::string obstacleOf(const CustomNonbondedForce& force, Interaction& interaction, std::vector<int>& typeOfParticle) {
    ParameterSets sets;
    const std::string obstacle = readSets(force, sets);
    if (!obstacle.empty()) return obstacle;
    interaction = Interaction();
    typeOfParticle.clear();
    sets.makeTypes(interaction, typeOfParticle);
    interaction.setSites(typeOfParticle, exclusionsOf(force));
    const auto method = force.getNonbondedMethod();
    interaction.periodic = method == CustomNonbondedForce::CutoffPeriodic;
    interaction.cutoff = method == CustomNonbondedForce::NoCutoff ? 0 : force.getCutoffDistance();
    interaction.switching = interaction.cutoff > 0 && force.getUseSwitchingFunction() ? force.getSwitchingDistance() : 0;
    return "";
}

std::vector<std::pair<int, int>> exclusionsOf(const CustomNonbondedForce& force) {
    std::vector<std::pair<int, int>> excluded(force.getNumExclusions());
    for (int k = 0; k < (int) excluded.size(); k++) force.getExclusionParticles(k, excluded[k].first, excluded[k].second);
    return excluded;
}

std::string forceWithList(ContextImpl& context, const Force& force) {
    const System& system = context.getSystem();
    for (int i = 0; i < system.getNumForces(); i++) {
        const Force& other = system.getForce(i);
        if (&other == &force) continue;
        bool lists = isOneOf<CustomGBForce, GBSAOBCForce, ConstantPotentialForce>(other);
        if (auto* nonbonded = dynamic_cast<const NonbondedForce*>(&other))
            lists = nonbonded->getIncludeDirectSpace() && !obstacleOf(*nonbonded).empty();
        if (auto* custom = dynamic_cast<const CustomNonbondedForce*>(&other)) {
            ParameterSets unused;
            lists = custom->getNumInteractionGroups() == 0 && !readSets(*custom, unused).empty();
        }
        if (lists) return other.getName();
    }
    return dynamic_cast<const DPDIntegrator*>(&context.getIntegrator()) ? "DPDIntegrator" : "";
}

}  // namespace fmm
