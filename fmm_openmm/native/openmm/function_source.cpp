#include "function_source.h"

#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include "lepton/Operation.h"
#include "separation.h"

using Lepton::Operation;
using Node = Lepton::ExpressionTreeNode;

namespace fmm {

static const int MAX_EXPONENT = 64;  // of powers that are expanded into products

// Operations in CUDA; $0, $1 and $2 stand for their operands.
static const std::map<Operation::Id, std::string> IN_CUDA = {
    {Operation::ADD, "$0 + $1"},
    {Operation::SUBTRACT, "$0 - $1"},
    {Operation::MULTIPLY, "$0 * $1"},
    {Operation::DIVIDE, "$0 * reciprocal($1)"},
    {Operation::RECIPROCAL, "reciprocal($0)"},
    {Operation::NEGATE, "-$0"},
    {Operation::POWER, "pow($0, $1)"},
    {Operation::SQRT, "sqrt($0)"},
    {Operation::EXP, "exp($0)"},
    {Operation::LOG, "log($0)"},
    {Operation::SIN, "sin($0)"},
    {Operation::COS, "cos($0)"},
    {Operation::TAN, "tan($0)"},
    {Operation::ASIN, "asin($0)"},
    {Operation::ACOS, "acos($0)"},
    {Operation::ATAN, "atan($0)"},
    {Operation::SEC, "reciprocal(cos($0))"},
    {Operation::CSC, "reciprocal(sin($0))"},
    {Operation::COT, "reciprocal(tan($0))"},
    {Operation::SINH, "sinh($0)"},
    {Operation::COSH, "cosh($0)"},
    {Operation::TANH, "tanh($0)"},
    {Operation::ERF, "erf($0)"},
    {Operation::ERFC, "erfc($0)"},
    {Operation::ABS, "fabs($0)"},
    {Operation::FLOOR, "floor($0)"},
    {Operation::CEIL, "ceil($0)"},
    {Operation::MIN, "fmin($0, $1)"},
    {Operation::MAX, "fmax($0, $1)"},
    {Operation::STEP, "$0 >= 0 ? real(1) : real(0)"},
    {Operation::DELTA, "$0 == 0 ? real(1) : real(0)"},
    {Operation::SELECT, "$0 != 0 ? $1 : $2"}};

// A factor times a power of the distance.
struct Monomial {
    double factor;
    int exponent;
};

template <class Kind>
static std::optional<double> valueOf(const Node& node) {
    auto* found = dynamic_cast<const Kind*>(&node.getOperation());
    return found ? std::optional<double>(found->getValue()) : std::nullopt;
}

static std::optional<Monomial> raised(const std::optional<Monomial>& base, double exponent) {
    if (!base || std::fabs(base->exponent * exponent) > MAX_EXPONENT) return {};
    const double product = base->exponent * exponent, factor = std::pow(base->factor, exponent);
    if (product != std::floor(product) || !std::isfinite(factor)) return {};
    return Monomial{factor, (int)product};
}

static std::optional<Monomial> multiplied(const std::optional<Monomial>& a,
                                          const std::optional<Monomial>& b) {
    if (!a || !b) return {};
    return Monomial{a->factor * b->factor, a->exponent + b->exponent};
}

static std::optional<Monomial> added(const std::optional<Monomial>& a,
                                     const std::optional<Monomial>& b) {
    if (!a || !b || a->exponent != b->exponent) return {};
    return Monomial{a->factor + b->factor, a->exponent};
}

static std::optional<Monomial> monomialOf(const Node& node) {
    const auto& children = node.getChildren();
    const auto operand = [&](int k) { return monomialOf(children[k]); };
    switch (node.getOperation().getId()) {
        case Operation::VARIABLE:
            if (node.getOperation().getName() != "r") return {};
            return Monomial{1, 1};
        case Operation::CONSTANT:
            return Monomial{*valueOf<Operation::Constant>(node), 0};
        case Operation::ADD:
            return added(operand(0), operand(1));
        case Operation::SUBTRACT:
            return added(operand(0), multiplied(Monomial{-1, 0}, operand(1)));
        case Operation::NEGATE:
            return multiplied(Monomial{-1, 0}, operand(0));
        case Operation::MULTIPLY_CONSTANT:
            return multiplied(Monomial{*valueOf<Operation::MultiplyConstant>(node), 0}, operand(0));
        case Operation::MULTIPLY:
            return multiplied(operand(0), operand(1));
        case Operation::DIVIDE:
            return multiplied(operand(0), raised(operand(1), -1));
        case Operation::RECIPROCAL:
            return raised(operand(0), -1);
        case Operation::SQUARE:
            return raised(operand(0), 2);
        case Operation::CUBE:
            return raised(operand(0), 3);
        case Operation::SQRT:
            return raised(operand(0), 0.5);
        case Operation::POWER_CONSTANT:
            return raised(operand(0), *valueOf<Operation::PowerConstant>(node));
        default:
            return {};
    }
}

static std::string number(double value) {
    if (!std::isfinite(value)) throw NotSeparable(NOT_FINITE);
    char text[40];
    std::snprintf(text, sizeof text, "real(%.17g)", value);
    return text;
}

class FunctionSource {
public:
    std::string text;

    // Adds the definitions of a node. Returns the name of its variable, or its number.
    std::string add(const Node& node) {
        const auto monomial = monomialOf(node);
        if (monomial) return add(*monomial);
        const auto& operation = node.getOperation();
        std::vector<std::string> arguments;
        for (const auto& child : node.getChildren()) arguments.push_back(add(child));
        switch (operation.getId()) {
            case Operation::VARIABLE:
                return operation.getName();
            case Operation::SQUARE:
                return power(arguments[0], 2);
            case Operation::CUBE:
                return power(arguments[0], 3);
            case Operation::ADD_CONSTANT:
                return define(arguments[0] + " + " +
                              number(*valueOf<Operation::AddConstant>(node)));
            case Operation::MULTIPLY_CONSTANT:
                return scaled(arguments[0], *valueOf<Operation::MultiplyConstant>(node));
            case Operation::POWER_CONSTANT: {
                const double exponent = *valueOf<Operation::PowerConstant>(node);
                if (exponent == std::floor(exponent) && std::fabs(exponent) <= MAX_EXPONENT)
                    return power(arguments[0], exponent);
                return define("pow(" + arguments[0] + ", " + number(exponent) + ")");
            }
            default:
                return apply(operation, arguments);
        }
    }

private:
    std::string add(const Monomial& monomial) {
        if (monomial.exponent == 0 || monomial.factor == 0) return number(monomial.factor);
        return scaled(power("r", monomial.exponent), monomial.factor);
    }
    std::string scaled(const std::string& value, double factor) {
        return factor == 1 ? value
                           : define(factor == -1 ? "-" + value : number(factor) + " * " + value);
    }
    std::string apply(const Operation& operation, const std::vector<std::string>& arguments) {
        const auto found = IN_CUDA.find(operation.getId());
        if (found == IN_CUDA.end())
            throw NotSeparable("`" + operation.getName() + "` takes the distance");
        std::string filled = found->second;
        for (size_t k = 0; k < arguments.size(); k++) {
            const std::string mark = "$" + std::to_string(k);
            filled.replace(filled.find(mark), mark.size(), arguments[k]);
        }
        return define(filled);
    }
    std::string power(const std::string& base, int exponent) {
        if (exponent == 0) return number(1);
        if (exponent < 0)
            return power(base == "r" ? "inverse" : define("reciprocal(" + base + ")"), -exponent);
        if (exponent == 1) return base;
        if (exponent == 2 && base == "r") return "square";
        const std::string half = power(base, exponent / 2), product = define(half + " * " + half);
        return exponent % 2 ? define(product + " * " + base) : product;
    }
    std::string define(const std::string& value) {
        const auto [at, isNew] = names.emplace(value, "t" + std::to_string(names.size()));
        if (isNew) text += "const real " + at->second + " = " + value + "; ";
        return at->second;
    }

    std::map<std::string, std::string> names;  // names by definition
};

std::string sourceOf(const std::map<std::string, Lepton::ParsedExpression>& functions) {
    FunctionSource source;
    std::string results;
    for (const auto& [name, function] : functions)
        results += "const real " + name + " = " + source.add(function.getRootNode()) + "; ";
    return source.text + results;
}

}  // namespace fmm
