#include "pair_energy.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "function_source.h"
#include "lepton/CustomFunction.h"
#include "lepton/Operation.h"
#include "lepton/Parser.h"
#include "openmm/reference/ReferenceTabulatedFunction.h"
#include "separation.h"

using namespace OpenMM;

namespace fmm {

static const size_t MAX_PARAMETER_SETS = 300;  // every pair of them is evaluated

using ParameterSet = std::vector<double>;
using PairMatrix = std::vector<double>;  // (sets, sets)

using Variables = std::map<std::string, double>;
using Node = Lepton::ExpressionTreeNode;
using Lepton::Operation;

// A sum of powers of the distance: coefficients by exponent.
using Powers = std::map<double, double>;

static bool isConstant(const Powers& sum) {
    return sum.empty() || (sum.size() == 1 && sum.count(0));
}
static double constantOf(const Powers& sum) {
    return sum.empty() ? 0 : sum.at(0);
}

static Powers added(Powers sum, const Powers& more, double factor) {
    for (const auto& [exponent, coefficient] : more)
        if ((sum[exponent] += factor * coefficient) == 0) sum.erase(exponent);
    return sum;
}

static Powers multiplied(const Powers& first, const Powers& second) {
    Powers product;
    for (const auto& [e1, c1] : first)
        for (const auto& [e2, c2] : second) product = added(product, {{e1 + e2, c1 * c2}}, 1);
    return product;
}

// Empty if the result is not such a sum, or has too many terms.
static std::optional<Powers> raised(const Powers& base, double exponent) {
    if (base.size() == 1) {
        const auto [own, coefficient] = *base.begin();
        return Powers{{own * exponent, std::pow(coefficient, exponent)}};
    }
    if (!(exponent == 2 || exponent == 3)) return {};
    const Powers square = multiplied(base, base);
    return exponent == 2 ? square : multiplied(square, base);
}

// An expression as a sum of powers of r, for given values of all other variables; empty if it is
// not such a sum.
static std::optional<Powers> powersOf(const Node& node, const Variables& variables) {
    const auto& operation = node.getOperation();
    if (operation.getId() == Operation::VARIABLE && operation.getName() == "r")
        return Powers{{1, 1}};
    std::vector<Powers> operands;
    std::vector<double> constants;
    for (const auto& child : node.getChildren()) {
        auto powers = powersOf(child, variables);
        if (!powers) return {};
        if (isConstant(*powers)) constants.push_back(constantOf(*powers));
        operands.push_back(std::move(*powers));
    }
    if (constants.size() == operands.size())
        return added({}, {{0, operation.evaluate(constants.data(), variables)}}, 1);
    switch (operation.getId()) {
        case Operation::ADD:
            return added(operands[0], operands[1], 1);
        case Operation::SUBTRACT:
            return added(operands[0], operands[1], -1);
        case Operation::NEGATE:
            return added({}, operands[0], -1);
        case Operation::MULTIPLY:
            return multiplied(operands[0], operands[1]);
        case Operation::ADD_CONSTANT:
            return added(operands[0],
                         {{0, dynamic_cast<const Operation::AddConstant&>(operation).getValue()}},
                         1);
        case Operation::MULTIPLY_CONSTANT:
            return added({}, operands[0],
                         dynamic_cast<const Operation::MultiplyConstant&>(operation).getValue());
        case Operation::DIVIDE:
            if (operands[1].size() != 1) return {};
            return multiplied(operands[0], *raised(operands[1], -1));
        case Operation::RECIPROCAL:
            return raised(operands[0], -1);
        case Operation::SQUARE:
            return raised(operands[0], 2);
        case Operation::CUBE:
            return raised(operands[0], 3);
        case Operation::POWER_CONSTANT:
            return raised(operands[0],
                          dynamic_cast<const Operation::PowerConstant&>(operation).getValue());
        default:
            return {};
    }
}

// Finds A and B if an energy is A / r^12 - B / r^6 for given values of its other variables.
static bool findCoefficients(const Node& energy, const Variables& variables, double& a, double& b) {
    const auto powers = powersOf(energy, variables);
    if (!powers) return false;
    a = b = 0;
    for (const auto& [exponent, coefficient] : *powers) {
        if (exponent == -12)
            a = coefficient;
        else if (exponent == -6)
            b = -coefficient;
        else
            return false;
    }
    return std::isfinite(a) && std::isfinite(b);
}

// An energy function of the distance r, the parameters of two particles and global ones.
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
        for (int i = 0; i < force.getNumPerParticleParameters(); i++)
            names.push_back(force.getPerParticleParameterName(i));
    }

    // The energy as a sum of products of a function of particles' parameters and a function of
    // everything else.
    std::vector<Product> products() const {
        return separated(expression.getRootNode(), ofParticles());
    }

    // Whether particles' parameters choose between functions of the distance.
    bool choosesByParticles() const { return chooses(expression.getRootNode(), ofParticles()); }

    // Whether the energy is A / r^12 - B / r^6 for every pair of the given particles; sets A and B.
    bool findCoefficients(const std::vector<ParameterSet>& particles, PairMatrix& a,
                          PairMatrix& b) const {
        a.resize(particles.size() * particles.size());
        b.resize(a.size());
        return forPairs(particles, [&](const Variables& variables, size_t p) {
            return fmm::findCoefficients(expression.getRootNode(), variables, a[p], b[p]);
        });
    }

    // Values of a function of particles' parameters for every pair of the given particles.
    PairMatrix valuesOf(const Node& function, const std::vector<ParameterSet>& particles) const {
        PairMatrix found(particles.size() * particles.size());
        const auto optimized = Lepton::ParsedExpression(function).optimize();
        forPairs(particles, [&](const Variables& variables, size_t p) {
            found[p] = optimized.evaluate(variables);
            return true;
        });
        return found;
    }

private:
    std::set<std::string> ofParticles() const {
        std::set<std::string> parameters;
        for (const auto& name : names) parameters.insert({name + "1", name + "2"});
        return parameters;
    }

    static bool chooses(const Node& node, const std::set<std::string>& parameters) {
        const auto& children = node.getChildren();
        return (node.getOperation().getId() == Operation::SELECT &&
                dependsOn(children[0], parameters)) ||
               std::any_of(children.begin(), children.end(),
                           [&](const Node& child) { return chooses(child, parameters); });
    }

    // Calls visit(variables, number of the pair) for every pair of particles until it returns
    // false. Returns whether all calls returned true.
    template <class Visit>
    bool forPairs(const std::vector<ParameterSet>& particles, Visit visit) const {
        Variables variables;
        const auto set = [&](const ParameterSet& values, const char* which) {
            for (size_t i = 0; i < names.size(); i++) variables[names[i] + which] = values[i];
        };
        size_t pair = 0;
        for (const auto& first : particles) {
            set(first, "1");
            for (const auto& second : particles) {
                set(second, "2");
                if (!visit(variables, pair++)) return false;
            }
        }
        return true;
    }

    Lepton::ParsedExpression expression;
    std::vector<std::string> names;
};

// Symmetrises a matrix, whose entries may differ from their transposes by rounding.
static void makeSymmetric(PairMatrix& matrix, int count) {
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++) {
            const double value = matrix[i * count + j];
            double& other = matrix[j * count + i];
            if (!(std::fabs(value - other) <= MAX_DEVIATION * std::fabs(value)))
                throw NotSeparable("it depends on the order of particles");
            other = value;
        }
}

// Source of both functions and their derivatives. It may contain global parameters. If `chosen`, a
// function is 0 for the pairs that do without it, where it may be NaN.
static std::string sourceOf(const Lepton::ParsedExpression& f, const Lepton::ParsedExpression& g,
                            bool chosen) {
    const auto fSlope = f.differentiate("r").optimize(), gSlope = g.differentiate("r").optimize();
    if (!chosen) return sourceOf({{"f", f}, {"f_slope", fSlope}, {"g", g}, {"g_slope", gSlope}});
    std::string source =
        sourceOf({{"any_f", f}, {"any_f_slope", fSlope}, {"any_g", g}, {"any_g_slope", gSlope}});
    for (const std::string name : {"f", "f_slope", "g", "g_slope"})
        source += "const real " + name + " = ab." + (name[0] == 'f' ? "x" : "y") + " != 0 ? any_" +
                  name + " : real(0); ";
    return source;
}

// The distinct sets of parameters, and the number of each particle's set.
static std::vector<ParameterSet> readSets(const CustomNonbondedForce& force,
                                          std::vector<int>& ofParticle) {
    std::vector<ParameterSet> sets;
    std::map<ParameterSet, int> known;
    for (int i = 0; i < force.getNumParticles(); i++) {
        ParameterSet own;
        force.getParticleParameters(i, own);
        const auto [at, isNew] = known.emplace(own, known.size());
        if (isNew) sets.push_back(own);
        if (sets.size() > MAX_PARAMETER_SETS)
            throw NotSeparable("its particles have more than " +
                               std::to_string(MAX_PARAMETER_SETS) + " sets of parameters");
        ofParticle.push_back(at->second);
    }
    return sets;
}

PairEnergy::PairEnergy(const CustomNonbondedForce& force) {
    for (int i = 0; i < force.getNumGlobalParameters(); i++)
        names.push_back(force.getGlobalParameterName(i));
    std::vector<int> setOfParticle;
    const auto sets = readSets(force, setOfParticle);
    const int count = sets.size();
    EnergyFunction energy(force);
    PairMatrix allA, allB;
    plain = sets.empty() || (names.empty() && energy.findCoefficients(sets, allA, allB));
    if (plain) {
        makeSymmetric(allA, count);
        makeSymmetric(allB, count);
    } else
        try {
            const auto products = energy.products();
            std::vector<PairMatrix> values;
            for (const auto& product : products)
                values.push_back(energy.valuesOf(product.parameters, sets));
            TwoProducts two(values, products);
            makeSymmetric(two.first, count);
            makeSymmetric(two.second, count);
            allA = two.first;
            allB = two.second;
            f = Lepton::ParsedExpression(two.f).optimize();
            g = Lepton::ParsedExpression(two.g).optimize();
            chosen = energy.choosesByParticles();
            sourceOf(f, g, chosen);
        } catch (const NotSeparable& reason) {
            throw NotSeparable("its energy is not A f(r) - B g(r): " + std::string(reason.what()));
        }

    // the types of sites are the sets with any interaction
    std::vector<int> type(count, -1), kept;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count && type[i] < 0; j++)
            if (allA[i * count + j] != 0 || allB[i * count + j] != 0) {
                type[i] = kept.size();
                kept.push_back(i);
            }
    types = kept.size();
    for (int i : kept)
        for (int j : kept) {
            a.push_back(allA[i * count + j]);
            b.push_back(allB[i * count + j]);
        }
    for (int set : setOfParticle) typeOfParticle.push_back(type[set]);
}

// Refuses NaN in place of a number that depends on global parameters alone, for which Lepton's
// optimize() never ends. Returns the value of an expression that does not depend on r.
static std::optional<double> checkNumbers(const Node& node, const Variables& variables) {
    const auto& operation = node.getOperation();
    if (operation.getId() == Operation::VARIABLE && operation.getName() == "r") return {};
    const auto& children = node.getChildren();
    std::vector<std::optional<double>> operands;
    std::vector<double> numbers;
    for (const auto& child : children) operands.push_back(checkNumbers(child, variables));
    for (const auto& operand : operands)
        if (operand) numbers.push_back(*operand);
    if (numbers.size() == children.size()) return operation.evaluate(numbers.data(), variables);
    for (const double value : numbers)
        if (std::isnan(value)) throw NotSeparable(NOT_FINITE);
    return {};
}

// An expression for given values of the global parameters. In place of each select() whose
// condition does not depend on r it has the branch that is taken, as the other one may divide by
// zero.
static Node decided(const Node& node, const Variables& variables) {
    const auto& operation = node.getOperation();
    const auto& children = node.getChildren();
    if (operation.getId() == Operation::SELECT)
        if (const auto condition = checkNumbers(children[0], variables))
            return decided(children[*condition != 0 ? 1 : 2], variables);
    std::vector<Node> now;
    for (const auto& child : children) now.push_back(decided(child, variables));
    return Node(operation.clone(), now);
}

// If f and g are combinations of 1/r^12 and 1/r^6, as when a global parameter scales an
// interaction, only the table depends on the values.
PairTable PairEnergy::at(const std::vector<double>& values) const {
    if (plain) return {a, b, ""};
    std::map<std::string, double> variables;
    for (size_t k = 0; k < names.size(); k++) variables[names[k]] = values[k];
    const auto optimized = [&](const Lepton::ParsedExpression& function) {
        const Node now = decided(function.getRootNode(), variables);
        const auto value = checkNumbers(now, variables);
        if (value && std::isnan(*value)) throw NotSeparable(NOT_FINITE);
        return Lepton::ParsedExpression(now).optimize(variables);
    };
    const auto fNow = optimized(f), gNow = optimized(g);
    double fTwelfth, fSixth, gTwelfth, gSixth;
    if (!findCoefficients(fNow.getRootNode(), {}, fTwelfth, fSixth) ||
        !findCoefficients(gNow.getRootNode(), {}, gTwelfth, gSixth))
        return {a, b, sourceOf(fNow, gNow, chosen)};
    PairTable table;
    for (size_t k = 0; k < a.size(); k++) {
        table.a.push_back(fTwelfth * a[k] - gTwelfth * b[k]);
        table.b.push_back(fSixth * a[k] - gSixth * b[k]);
    }
    return table;
}

}  // namespace fmm
