// What the plugin finds in the energy of a CustomNonbondedForce, as text for test_pair_energy.py:
// why it is refused, or an empty line, then types of particles, A,
// B and the functions, a line each.
#include <cstdio>
#include <sstream>

#include "force_survey.h"
#include "openmm/serialization/XmlSerializer.h"

template <class T>
static void write(std::ostream& out, const std::vector<T>& values) {
    for (const T& value : values) out << value << ' ';
    out << '\n';
}

extern "C" const char* recognise(const char* xml, const double* values, int count) {
    static std::string text;
    std::ostringstream out;
    out.precision(17);
    try {
        std::istringstream in(xml);
        using OpenMM::CustomNonbondedForce;
        const std::unique_ptr<CustomNonbondedForce> force(
            OpenMM::XmlSerializer::deserialize<CustomNonbondedForce>(in));
        fmm::PairEnergy energy;
        out << fmm::obstacleOf(*force, energy) << '\n';
        const auto table = energy.at({values, values + count});
        write(out, energy.typeOfParticle);
        write(out, table.a);
        write(out, table.b);
        out << table.functions << '\n';
    } catch (const std::exception& error) {
        out.str(std::string(error.what()) + "\n\n\n\n\n");
    }
    text = out.str();
    return text.c_str();
}
