// The interface between Python and the plugin, and the phases of programs.
// Written by python -m fmm_openmm.backends.cuda.abi: change it there.
// clang-format off
#pragma once
#include <cstdint>

namespace fmm {

constexpr char COMPILER_OPTIONS[] = "--std=c++17 --ftz=true";
constexpr double SAME_SHAPE = 1e-12;
constexpr int WHOLE = 65536;

namespace phase {
constexpr char SETUP[] = "setup";
constexpr char AHEAD[] = "ahead";
constexpr char EVALUATE[] = "evaluate";
constexpr char FAR[] = "far";
constexpr char NEAR[] = "near";
constexpr char EXPORT[] = "export";
constexpr char GATHER[] = "gather";
constexpr char LIST[] = "list";
constexpr char SEARCH[] = "search";
constexpr char FORCES[] = "forces";
constexpr char ENERGY[] = "energy";
constexpr char BOTH[] = "both";
}  // namespace phase

enum Precision { SINGLE_PRECISION, MIXED_PRECISION, DOUBLE_PRECISION };

enum Delivery { CLAIM, PROGRAM, PARAMETERS, CHARGES, FAILURE, EXCLUSIONS, BAD_INPUT, FORCES, DEVICES, COLLECTOR, DONE };

struct Inbox;

// Properties of a Context and of its first device: precision (an index of PRECISIONS), numbers
// of particles, model, multiprocessors, shared memory per block, the number of devices; the number
// of others of this model with access to its memory, and of elements of the energy buffer.
struct Place {
    int precision;
    int particles;
    int padded;
    int processors;
    int shared;
    int group;
    const char* model;
    int devices;
    int peers;
    int energies;
};

// A force with pairs, in a Context whose PythonForces have these pickled callables: its name,
// whether it has a cutoff, why its pairs cannot be computed among its sites (or empty), and the
// name of another force that makes OpenMM list all near pairs anyway (or empty).
struct Pairs {
    const void* context;
    const void* const* pickled;
    const int64_t* sizes;
    int count;
    const char* force;
    int particles;
    int sites;
    int limited;
    const char* obstacle;
    const char* companion;
};

// Input of a program for Lennard-Jones interactions: ``Sites`` of ``lennard_jones.py``. Zero
// means no such distance and no box; ``functions`` is the source of f and g if they are not 1/r^12
// and 1/r^6; ``shared`` tells whether several devices share the pairs.
struct Sites {
    int number;
    int types;
    int partners;
    int deterministic;
    int entries;
    int masked;
    int shared;
    double cutoff;
    double switching;
    double radius;
    double box[9];
    const char* functions;
};

// The parameter block of the pipeline, documented in ``kernels/common/parameters.cuh``.
struct Parameters {
    double inverse[9];
    double boxes[9];
    double slope[9];
    double potential;
    double field;
    double cell[9];
    double origin[3];
};

// The place of a slab or wire, documented in ``kernels/common/parameters.cuh``; zeros for
// others.
struct Placement {
    double middle[3];
    double farthest[3];
    double normals[9];
    double vectors[9];
    double axes[9];
};

// The boxes of a program: the limits of the strains for which they are valid; for a region, the
// evaluations after which it is compared with its particles again, and how many times in a row
// it may move for the same positions; the unstrained cell, nm, and in it the place of a slab or
// wire and the parameter block.
struct BoxesData {
    double stretch;
    double shear;
    double recheck;
    double moves;
    double cell[9];
    Placement placement;
    Parameters parameters;
};

// Sums over the particles that an evaluation with energy delivers: the energy, kJ/mol, and
// the sums of q^2 E^2, q^2 |E|^3 and q^2 phi^2, in units of charges and box widths.
struct Sums {
    double energy;
    double squares;
    double cubes;
    double potentials;
};

// Limits of Sums within which the parameters suit the forces, documented in
// ``planning/forces.py``.
struct ForceLimits {
    double cubes;
    double constant;
    double smallest;
    double potentials;
    double largest;
};

// The cell of Lennard-Jones sites, documented in ``sites.cuh``.
struct Cell {
    double vectors[9];
    double radius;
    double limit;
};

// The persistent state of the list of Lennard-Jones pairs, documented in ``sites.cuh``.
struct State {
    int built;
    int sorted;
    int builds;
    int entries;
    int masked;
    int too_long;
    int strayed;
    unsigned arrived;
};

// Python's callbacks. Each that has an inbox delivers its answer there before it returns.
//
// open(session, context, pickled, size, place): asks whether a force is an FMMForce. Delivers
// EXCLUSIONS, pairs of int32, unless exclusions are periodic; and CLAIM if the plugin computes the
// force: names of global parameters, separated by 0. If several devices share the work, also
// DEVICES, indices or UUIDs separated by 0, or "auto"; and COLLECTOR, the program of
// ``fmm_openmm.backends.cuda.shares``.
//
// request(session, what, box, positions, names, values, count, sums): asks for data for a box and
// values of the global parameters. PROGRAM: a program and, as PARAMETERS, its BoxesData.
// PARAMETERS: BoxesData alone if the present program is valid for the box, else a program too; if
// positions are given, boxes that cover them; without them possibly nothing. CHARGES: charges, or
// a program if they need another one. FORCES: the same as PARAMETERS, with a program in double
// precision or with other parameters if the sums of the last evaluation require it; for all others
// they are null. Each answer has FORCES, its ForceLimits. FAILURE: why the energy is not finite.
// Errors are delivered instead of an answer: BAD_INPUT for an error of the user, else FAILURE.
//
// settle(session, reason): the host bridge computes this force from now on. Delivers FAILURE if
// the user allows only the native bridge.
//
// claim_pairs(claim, pairs): asks whether the plugin computes the Lennard-Jones pairs of a force.
// Delivers CLAIM if so, FAILURE if it must but cannot.
//
// pair_program(sites, place): delivers PROGRAM, or FAILURE.
//
// report_compilation(): logs that kernels are being compiled, which takes seconds.
//
// note(text): logs a text.
//
// close(session) and close_pairs(claim) are null once Python exits.
struct Callbacks {
    void (*open)(const void*, const void*, const void*, int64_t, const Place*, Inbox*);
    void (*request)(const void*, int, const double*, const double*, const char* const*, const double*, int, const Sums*, Inbox*);
    void (*settle)(const void*, const char*, Inbox*);
    void (*close)(const void*);
    void (*claim_pairs)(const void*, const Pairs*, Inbox*);
    void (*pair_program)(const Sites*, const Place*, Inbox*);
    void (*close_pairs)(const void*);
    void (*report_compilation)();
    void (*note)(const char*);
};

}  // namespace fmm
