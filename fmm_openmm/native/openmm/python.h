// What the plugin asks Python, and how it answers.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "openmm/OpenMMException.h"

namespace fmm {

enum Delivery { CLAIM, PROGRAM, PARAMETERS, CHARGES, FAILURE, EXCLUSIONS, BAD_INPUT, DONE };

// What Python hands over during a call; DONE comes last. Without it Python
// was interrupted (Ctrl-C).
struct Inbox {
    std::map<int, std::string> items;

    void check() const;  // throws Interrupted
};

// What the user must mend.
class BadInput : public OpenMM::OpenMMException {
public:
    using OpenMM::OpenMMException::OpenMMException;
};

class Interrupted : public BadInput {
public:
    using BadInput::BadInput;
};

inline void Inbox::check() const {
    if (!items.count(DONE)) throw Interrupted("FMMForce: interrupted");
}

// Where a force is computed: of the Context its precision (0 single, 1 mixed, 2 double) and numbers
// of particles, of its first device the model, multiprocessors and shared memory a block.
struct Place {
    int precision, particles, padded, processors, shared, group;
    const char* model;
};

// A force with pairs, in a Context of which the PythonForces have these pickled callables.
struct Pairs {
    void* context;
    const char* const* pickled;
    const int64_t* sizes;
    int count;
    const char* force;  // its name
    int particles, sites;
    int limited;            // whether it has a cutoff
    const char* obstacle;   // why its pairs cannot be computed here, or empty
    const char* companion;  // another force, which has OpenMM list all pairs near each other
                            // anyway, or empty
};

// What a program for Lennard-Jones interactions depends on: Sites of
// fmm_openmm/backends/cuda/lennard_jones.py. A distance of 0 is none, and so is a box.
struct Sites {
    int number, types, partners, deterministic, entries, masked, energies;
    double cutoff, switching, radius, box[9];
    // source of f and g where they are not 1/r^12 and 1/r^6, or empty
    const char* functions;
};

// Python's side (fmm_openmm/integration/native.py), which answers by fmm_deliver() into the inbox
// before it returns, DONE last.
struct Callbacks {
    // Is this force ours? Delivers EXCLUSIONS, pairs of int32, unless these are periodic; and CLAIM
    // if it is to be served here: names of global parameters, each but the last followed by 0.
    void (*open)(void* session, void* context, const char* pickled, int64_t size,
                 const Place* place, Inbox* inbox);
    // For a box and values of the global parameters. PROGRAM: a program and, as PARAMETERS, its
    // Boxes (cell.h). PARAMETERS: these alone, if the latest program serves the box as well; with
    // positions for boxes that cover these, without them perhaps nothing. CHARGES: charges, or a
    // program if these need another. FAILURE: why the energy is not a number. Instead of an answer:
    // BAD_INPUT, what the user must mend, or FAILURE.
    void (*request)(void* session, int what, const double* box, const double* positions,
                    const char* const* names, const double* values, int count, Inbox* inbox);
    // The host bridge serves this force from now on, for this reason. Delivers FAILURE if the user
    // allows the native one only.
    void (*settle)(void* session, const char* reason, Inbox* inbox);
    void (*close)(void* session);  // null once Python is about to end
    // Are the Lennard-Jones pairs of a force to be computed here? Delivers CLAIM if so, FAILURE if
    // they must be and cannot.
    void (*claimPairs)(void* kernel, const Pairs* pairs, Inbox* inbox);
    // PROGRAM: that for sites. Instead of it FAILURE.
    void (*pairProgram)(const Sites* sites, const Place* place, Inbox* inbox);
    void (*closePairs)(void* kernel);  // null once Python is about to end
};

extern Callbacks python;

// Counts changes of force definitions; kernels ask for the charges again when it has changed.
extern volatile int64_t revision;

}  // namespace fmm
