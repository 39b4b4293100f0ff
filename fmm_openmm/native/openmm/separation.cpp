#include "separation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lepton/Operation.h"

using Lepton::Operation;
using Node = Lepton::ExpressionTreeNode;

#undef SQRT  // a macro of the headers of OpenMM's Reference platform

namespace fmm {

static const size_t MAX_PRODUCTS = 64;

static Node numberNode(double value) {
    return Node(new Operation::Constant(value));
}

static bool isOne(const Node& node) {
    auto* constant = dynamic_cast<const Operation::Constant*>(&node.getOperation());
    return constant && constant->getValue() == 1;
}

static Node multiplied(const Node& a, const Node& b) {
    if (isOne(a)) return b;
    return isOne(b) ? a : Node(new Operation::Multiply(), a, b);
}

bool dependsOn(const Node& node, const std::set<std::string>& variables) {
    const auto& operation = node.getOperation();
    if (operation.getId() == Operation::VARIABLE) return variables.count(operation.getName());
    const auto& children = node.getChildren();
    return std::any_of(children.begin(), children.end(),
                       [&](const Node& child) { return dependsOn(child, variables); });
}

using Sum = std::vector<Product>;

static Sum added(Sum sum, const Sum& more) {
    for (const auto& product : more) {
        const auto hasSame = [&](const Product& other) {
            return other.function == product.function;
        };
        const auto same = std::find_if(sum.begin(), sum.end(), hasSame);
        if (same == sum.end())
            sum.push_back(product);
        else
            same->parameters = Node(new Operation::Add(), same->parameters, product.parameters);
    }
    if (sum.size() > MAX_PRODUCTS) throw NotSeparable("it has too many terms");
    return sum;
}

static Sum multiplied(const Sum& a, const Sum& b) {
    Sum sum;
    for (const auto& residual : a)
        for (const auto& right : b)
            sum = added(sum, {{multiplied(residual.parameters, right.parameters),
                               multiplied(residual.function, right.function)}});
    return sum;
}

static Sum scaled(Sum sum, double factor) {
    for (auto& product : sum)
        product.parameters = Node(new Operation::MultiplyConstant(factor), product.parameters);
    return sum;
}

class Separation {
public:
    explicit Separation(const std::set<std::string>& parameters) : parameters(parameters) {}

    Sum separate(const Node& node) const {
        if (!hasParameters(node)) return {{numberNode(1), node}};
        if (!hasOthers(node)) return {{node, numberNode(1)}};
        const auto& operation = node.getOperation();
        const auto& children = node.getChildren();
        switch (operation.getId()) {
            case Operation::ADD:
                return added(separate(children[0]), separate(children[1]));
            case Operation::SUBTRACT:
                return added(separate(children[0]), scaled(separate(children[1]), -1));
            case Operation::NEGATE:
                return scaled(separate(children[0]), -1);
            case Operation::ADD_CONSTANT:
                return added(separate(children[0]),
                             {{numberNode(valueOf<Operation::AddConstant>(node)), numberNode(1)}});
            case Operation::MULTIPLY_CONSTANT:
                return scaled(separate(children[0]), valueOf<Operation::MultiplyConstant>(node));
            case Operation::MULTIPLY:
                return multiplied(separate(children[0]), separate(children[1]));
            case Operation::DIVIDE:
                return multiplied(separate(children[0]),
                                  applyToFactors(Operation::Reciprocal(), children[1]));
            case Operation::SQUARE:
                return power(children[0], 2);
            case Operation::CUBE:
                return power(children[0], 3);
            case Operation::SELECT:
                return added(branch(children[0], children[1], true),
                             branch(children[0], children[2], false));
            case Operation::RECIPROCAL:
            case Operation::SQRT:
            case Operation::ABS:
            case Operation::POWER_CONSTANT:
                return applyToFactors(operation, children[0]);
            default:
                throw mixed(operation);
        }
    }

private:
    bool hasParameters(const Node& node) const { return dependsOn(node, parameters); }
    bool hasOthers(const Node& node) const {
        const auto& operation = node.getOperation();
        if (operation.getId() == Operation::VARIABLE) return !parameters.count(operation.getName());
        const auto& children = node.getChildren();
        return std::any_of(children.begin(), children.end(),
                           [&](const Node& child) { return hasOthers(child); });
    }
    static NotSeparable mixed(const Operation& operation) {
        return NotSeparable(
            "`" + operation.getName() +
            "` takes parameters of particles together with the distance or with global parameters");
    }
    template <class Kind>
    static double valueOf(const Node& node) {
        return dynamic_cast<const Kind&>(node.getOperation()).getValue();
    }
    Sum power(const Node& base, int exponent) const {
        const Sum once = separate(base);
        Sum sum = once;
        for (int k = 1; k < exponent; k++) sum = multiplied(sum, once);
        return sum;
    }
    // Applies an operation that distributes over the factors of a product. Roots and non-integer
    // powers of negative parameters are NaN, which is refused when values are known.
    Sum applyToFactors(const Operation& operation, const Node& argument) const {
        const Sum sum = separate(argument);
        if (sum.size() > 1) throw mixed(operation);
        const auto applied = [&](const Node& factor) {
            return isOne(factor) ? factor : Node(operation.clone(), factor);
        };
        return {{applied(sum[0].parameters), applied(sum[0].function)}};
    }
    // The branch of select() that `value` is, and zero where the other branch is taken.
    Sum branch(const Node& condition, const Node& value, bool isFirst) const {
        const bool byParameters = hasParameters(condition);
        if (byParameters && hasOthers(condition)) throw mixed(Operation::Select());
        Sum sum = separate(value);
        for (auto& product : sum) {
            Node& factor = byParameters ? product.parameters : product.function;
            factor = Node(new Operation::Select(), {condition, isFirst ? factor : numberNode(0),
                                                    isFirst ? numberNode(0) : factor});
        }
        return sum;
    }

    const std::set<std::string>& parameters;
};

std::vector<Product> separated(const Node& energy, const std::set<std::string>& parameters) {
    return Separation(parameters).separate(energy);
}

using Row = std::vector<double>;

// The factor by which a row is a multiple of another, or NaN.
static double factorBetween(const Row& row, const Row& other) {
    size_t at = 0;
    for (size_t p = 1; p < row.size(); p++)
        if (std::fabs(other[p]) > std::fabs(other[at])) at = p;
    const double factor = row[at] / other[at];
    for (size_t p = 0; p < row.size(); p++)
        if (!(std::fabs(row[p] - factor * other[p]) <= MAX_DEVIATION * std::fabs(row[p])))
            return NAN;
    return factor;
}

// Weight of a row in the choice of a pivot: the number of rows that are multiples of it, over its
// largest value.
static double weightOf(const Row& row, const std::vector<Row>& rows) {
    double largest = 0;
    for (const double value : row) {
        if (!std::isfinite(value)) throw NotSeparable("a coefficient is not finite");
        largest = std::max(largest, std::fabs(value));
    }
    int multiples = 0;
    for (const auto& other : rows) multiples += !std::isnan(factorBetween(other, row));
    return multiples / largest;
}

// Gaussian elimination with complete pivoting. Every row is divided by its largest value and
// weighted by the number of rows that are multiples of it. The pivot rows become `first` and
// `second`, and all others are combinations of them, without rounding if one suffices.
TwoProducts::TwoProducts(const std::vector<Row>& values, const std::vector<Product>& products)
    : first(values[0].size()), second(values[0].size()), f(numberNode(0)), g(numberNode(0)) {
    const size_t rows = values.size(), pairs = values[0].size();
    Row weight(rows), shares[2] = {Row(rows), Row(rows)};
    auto residual = values;  // each row minus its combination of pivot rows
    auto size = values;      // magnitude of the terms of that difference
    for (size_t k = 0; k < rows; k++) {
        weight[k] = weightOf(values[k], values);
        for (double& magnitude : size[k]) magnitude = std::fabs(magnitude);
    }
    for (int found = 0;; found++) {
        size_t row = rows, pair = 0;
        double most = 0;
        for (size_t k = 0; k < rows; k++)
            for (size_t p = 0; p < pairs; p++) {
                const double remainder = std::fabs(residual[k][p]);
                if (remainder <= MAX_DEVIATION * size[k][p] || weight[k] * remainder <= most)
                    continue;
                most = weight[k] * remainder;
                row = k;
                pair = p;
            }
        if (row == rows) break;
        if (found == 2) throw NotSeparable("it takes more than two functions of the distance");
        (found == 0 ? first : second) = values[row];
        const Row pivots = residual[row];
        const double before = shares[0][row];
        for (size_t k = 0; k < rows; k++) {
            const double share = residual[k][pair] / pivots[pair];
            shares[found][k] = share;
            if (found == 1) shares[0][k] -= share * before;
            for (size_t p = 0; p < pairs; p++) {
                size[k][p] += std::fabs(share * pivots[p]);
                residual[k][p] -= share * pivots[p];
            }
        }
    }
    for (size_t k = 0; k < rows; k++) {
        double a = factorBetween(values[k], first), b = 0;
        if (std::isnan(a)) {
            a = 0;
            b = factorBetween(values[k], second);
        }
        if (std::isnan(b)) {
            a = shares[0][k];
            b = shares[1][k];
        }
        if (a != 0)
            f = Node(new Operation::Add(), f,
                     Node(new Operation::MultiplyConstant(a), products[k].function));
        if (b != 0)
            g = Node(new Operation::Subtract(), g,
                     Node(new Operation::MultiplyConstant(b), products[k].function));
    }
}

}  // namespace fmm
