#include "pair_energy.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "function_source.h"
#include "lepton/CompiledExpression.h"
#include "lepton/CustomFunction.h"
#include "lepton/Operation.h"
#include "lepton/Parser.h"
#include "openmm/reference/ReferenceTabulatedFunction.h"
#include "separation.h"

using namespace OpenMM;

namespace fmm {

static const size_t MAX_PARAMETER_SETS = 300;  // of the particles: every pair of them is tried
static const double MAX_DEVIATION = 1e-9;      // relative, of an energy from the form asked for

using Parameters = std::vector<double>;
using Matrix = std::vector<double>;            // (sets, sets)

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
        for (int i = 0; i < force.getNumPerParticleParameters(); i++) names.push_back(force.getPerParticleParameterName(i));
    }
    void setParticles(const Parameters& first, const Parameters& second) {
        for (size_t i = 0; i < names.size(); i++) {
            variables[names[i] + "1"] = first[i];
            variables[names[i] + "2"] = second[i];
        }
    }
    double at(double r) {
        variables["r"] = r;
        return expression.evaluate(variables);
    }

    // The same energy as products of functions of particles' parameters and functions of all else.
    std::vector<Product> products() const {
        std::set<std::string> ofParticles;
        for (const auto& name : names) ofParticles.insert({name + "1", name + "2"});
        return separated(expression.getRootNode(), ofParticles);
    }

    // A function of particles' parameters alone, for every two of some particles.
    Matrix forPairs(const Lepton::ExpressionTreeNode& function, const std::vector<Parameters>& particles) const {
        auto compiled = Lepton::ParsedExpression(function).optimize().createCompiledExpression();
        const auto set = [&](const Parameters& values, const char* which) {
            for (size_t i = 0; i < names.size(); i++)
                if (compiled.getVariables().count(names[i] + which))
                    compiled.getVariableReference(names[i] + which) = values[i];
        };
        Matrix found;
        for (const auto& first : particles) {
            set(first, "1");
            for (const auto& second : particles) {
                set(second, "2");
                found.push_back(compiled.evaluate());
            }
        }
        return found;
    }

    Lepton::ParsedExpression expression;

private:
    std::vector<std::string> names;
    std::map<std::string, double> variables;
};

// Whether only arithmetic is done with the distance, so that a few distances tell what a function is at all others.
static bool isRational(const Lepton::ExpressionTreeNode& node) {
    using Lepton::Operation;
    static const std::set<Operation::Id> arithmetic = {
        Operation::VARIABLE, Operation::ADD, Operation::SUBTRACT, Operation::MULTIPLY, Operation::DIVIDE, Operation::NEGATE,
        Operation::SQUARE, Operation::CUBE, Operation::RECIPROCAL, Operation::ADD_CONSTANT, Operation::MULTIPLY_CONSTANT,
        Operation::POWER_CONSTANT};
    if (!dependsOn(node, {"r"})) return true;
    const auto& children = node.getChildren();
    return arithmetic.count(node.getOperation().getId()) && std::all_of(children.begin(), children.end(), isRational);
}

// A and B, if the energy at a distance is A / r^12 - B / r^6.
template <class Energy>
static bool findCoefficients(Energy at, double& a, double& b) {
    const double far = at(1.0);
    a = (at(0.1) - 1e6 * far) / (1e12 - 1e6);
    b = a - far;
    for (double r : {0.15, 0.33, 0.71, 2.3}) {
        const double sixth = std::pow(r, -6), found = at(r);
        if (!(std::fabs(found - (a * sixth - b) * sixth) <= MAX_DEVIATION * (std::fabs(a) * sixth + std::fabs(b)) * sixth))
            return false;
    }
    return true;
}

// The same for every two of some particles; false also if their order matters.
static bool findCoefficients(EnergyFunction& energy, const std::vector<Parameters>& particles, Matrix& a, Matrix& b) {
    const size_t count = particles.size();
    a.assign(count * count, 0);
    b.assign(count * count, 0);
    if (!isRational(energy.expression.getRootNode())) return false;
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j <= i; j++) {
            double &aij = a[i * count + j], &bij = b[i * count + j];
            energy.setParticles(particles[j], particles[i]);
            const double near = energy.at(0.15), far = energy.at(1.0);
            energy.setParticles(particles[i], particles[j]);
            const double size = MAX_DEVIATION * (std::fabs(near) + std::fabs(far));
            if (!findCoefficients([&](double r) { return energy.at(r); }, aij, bij)) return false;
            if (!(std::fabs(energy.at(0.15) - near) <= size && std::fabs(energy.at(1.0) - far) <= size)) return false;
            a[j * count + i] = aij;
            b[j * count + i] = bij;
        }
    return true;
}

// Values of pairs the other way round may differ by rounding.
static void makeSymmetric(Matrix& matrix, int count) {
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++) {
            const double value = matrix[i * count + j];
            double& other = matrix[j * count + i];
            if (!(std::fabs(value - other) <= MAX_DEVIATION * std::fabs(value)))
                throw NotSeparable("it depends on the order of particles");
            other = value;
        }
}

// Source of both functions and their derivatives, in which global parameters may be left over.
static std::string sourceOf(const Lepton::ParsedExpression& f, const Lepton::ParsedExpression& g) {
    const auto fSlope = f.differentiate("r").optimize(), gSlope = g.differentiate("r").optimize();
    return sourceOf({{"f", f}, {"f_slope", fSlope}, {"g", g}, {"g_slope", gSlope}});
}

// The sets of parameters that particles have, and which of them each has.
static std::vector<Parameters> readSets(const CustomNonbondedForce& force, std::vector<int>& ofParticle) {
    std::vector<Parameters> sets;
    std::map<Parameters, int> known;
    for (int i = 0; i < force.getNumParticles(); i++) {
        Parameters own;
        force.getParticleParameters(i, own);
        const auto [at, isNew] = known.emplace(own, known.size());
        if (isNew) sets.push_back(own);
        if (sets.size() > MAX_PARAMETER_SETS)
            throw NotSeparable("its particles have more than " + std::to_string(MAX_PARAMETER_SETS) + " sets of parameters");
        ofParticle.push_back(at->second);
    }
    return sets;
}

PairEnergy::PairEnergy(const CustomNonbondedForce& force) {
    for (int i = 0; i < force.getNumGlobalParameters(); i++) names.push_back(force.getGlobalParameterName(i));
    std::vector<int> setOfParticle;
    const auto sets = readSets(force, setOfParticle);
    const int count = sets.size();
    EnergyFunction energy(force);
    Matrix allA, allB;
    plain = sets.empty() || (names.empty() && findCoefficients(energy, sets, allA, allB));
    if (!plain) try {
        const auto products = energy.products();
        std::vector<Matrix> values;
        for (const auto& product : products) values.push_back(energy.forPairs(product.parameters, sets));
        TwoProducts two(values, products);
        makeSymmetric(two.first, count);
        makeSymmetric(two.second, count);
        allA = two.first;
        allB = two.second;
        f = Lepton::ParsedExpression(two.f).optimize();
        g = Lepton::ParsedExpression(two.g).optimize();
        sourceOf(f, g);
    } catch (const NotSeparable& reason) {
        throw NotSeparable("its energy is not A f(r) - B g(r): " + std::string(reason.what()));
    }

    // types of sites: the sets that interact with some other
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

// Where f and g are combinations of 1/r^12 and 1/r^6, as if a global parameter scales these, only the table depends on it.
PairTable PairEnergy::at(const std::vector<double>& values) const {
    if (plain) return {a, b, ""};
    std::map<std::string, double> variables;
    for (size_t k = 0; k < names.size(); k++) variables[names[k]] = values[k];
    const auto fNow = f.optimize(variables), gNow = g.optimize(variables);
    const auto read = [](const Lepton::ParsedExpression& function, double& twelfth, double& sixth) {
        return isRational(function.getRootNode()) &&
               findCoefficients([&](double r) { return function.evaluate({{"r", r}}); }, twelfth, sixth);
    };
    double fTwelfth, fSixth, gTwelfth, gSixth;
    if (!read(fNow, fTwelfth, fSixth) || !read(gNow, gTwelfth, gSixth)) return {a, b, sourceOf(fNow, gNow)};
    PairTable table;
    for (size_t k = 0; k < a.size(); k++) {
        table.a.push_back(fTwelfth * a[k] - gTwelfth * b[k]);
        table.b.push_back(fSixth * a[k] - gSixth * b[k]);
    }
    return table;
}

}  // namespace fmm
