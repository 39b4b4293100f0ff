// What Python and the plugin tell each other, and the phases of programs.
// Written by python -m fmm_openmm.backends.cuda.abi: change it there.
// clang-format off
#pragma once
#include <cstdint>

namespace fmm {

constexpr char COMPILER_OPTIONS[] = "--std=c++17 --ftz=true";
constexpr double SAME_SHAPE = 1e-12;

namespace phase {
constexpr char SETUP[] = "setup";
constexpr char AHEAD[] = "ahead";
constexpr char EVALUATE[] = "evaluate";
constexpr char EXPORT[] = "export";
constexpr char GATHER[] = "gather";
constexpr char LIST[] = "list";
constexpr char SEARCH[] = "search";
constexpr char FORCES[] = "forces";
constexpr char ENERGY[] = "energy";
constexpr char BOTH[] = "both";
}  // namespace phase

enum Precision { SINGLE_PRECISION, MIXED_PRECISION, DOUBLE_PRECISION };

enum Delivery { CLAIM, PROGRAM, PARAMETERS, CHARGES, FAILURE, EXCLUSIONS, BAD_INPUT, DONE };

struct Inbox;

// Where a force is computed: of the Context its precision (an index of PRECISIONS) and numbers
// of particles, of its first device the model, multiprocessors and shared memory a block.
struct Place {
    int precision;
    int particles;
    int padded;
    int processors;
    int shared;
    int group;
    const char* model;
};

// A force with pairs, in a Context whose PythonForces have these pickled callables: its name,
// whether it has a cutoff, why its pairs cannot be computed among its sites, or nothing, and
// another force that has OpenMM list all pairs near each other anyway, or nothing.
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

// What a program for Lennard-Jones interactions depends on: ``Sites`` of ``lennard_jones.py``.
// A distance of 0 is none, and so is a box; ``functions`` is the source of f and g where these are
// not 1/r^12 and 1/r^6.
struct Sites {
    int number;
    int types;
    int partners;
    int deterministic;
    int entries;
    int masked;
    int energies;
    double cutoff;
    double switching;
    double radius;
    double box[9];
    const char* functions;
};

// The parameter block of the pipeline: ``kernels/common/parameters.cuh`` explains it.
struct Parameters {
    double inverse[9];
    double boxes[9];
    double slope[9];
    double potential;
    double field;
    double cell[9];
    double origin[3];
};

// The boxes of a program: which strains they serve, the cell that strains start from, nm, and
// the parameter block in it.
struct BoxesData {
    double stretch;
    double shear;
    double cell[9];
    Parameters parameters;
};

// The cell of Lennard-Jones sites: ``sites.cuh`` explains it.
struct Cell {
    double vectors[9];
    double radius;
    double limit;
};

// What the list of Lennard-Jones pairs leaves to the next evaluation: ``sites.cuh`` explains
// it.
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

// Python's side, which delivers to the inbox before it returns.
//
// open(session, context, pickled, size, place): is this force ours? Delivers EXCLUSIONS, pairs of
// int32, unless these are periodic; and CLAIM if it is to be served here: names of global
// parameters, each but the last followed by 0.
//
// request(session, what, box, positions, names, values, count): for a box and values of the global
// parameters. PROGRAM: a program and, as PARAMETERS, its BoxesData. PARAMETERS: these alone, if
// the latest program serves the box as well; with positions for boxes that cover these, without
// them perhaps nothing. CHARGES: charges, or a program if these need another. FAILURE: why the
// energy is not a number. Instead of an answer: BAD_INPUT, what the user must mend, or FAILURE.
//
// settle(session, reason): the host bridge serves this force from now on. Delivers FAILURE if the
// user allows the native one only.
//
// claim_pairs(claim, pairs): are the Lennard-Jones pairs of a force to be computed here? Delivers
// CLAIM if so, FAILURE if they must be and cannot.
//
// pair_program(sites, place): delivers PROGRAM, or FAILURE.
//
// close(session) and close_pairs(claim) are null once Python is about to end.
struct Callbacks {
    void (*open)(const void*, const void*, const void*, int64_t, const Place*, Inbox*);
    void (*request)(const void*, int, const double*, const double*, const char* const*, const double*, int, Inbox*);
    void (*settle)(const void*, const char*, Inbox*);
    void (*close)(const void*);
    void (*claim_pairs)(const void*, const Pairs*, Inbox*);
    void (*pair_program)(const Sites*, const Place*, Inbox*);
    void (*close_pairs)(const void*);
};

}  // namespace fmm
