// Python's answers to the plugin's requests.
#pragma once
#include <map>
#include <string>

#include "abi.h"
#include "openmm/OpenMMException.h"

namespace fmm {

// The items that Python delivers during a call. The last one is DONE; if it is missing, Python was
// interrupted (Ctrl-C).
struct Inbox {
    std::map<int, std::string> items;

    void check() const;  // throws Interrupted
};

// An error in the user's input.
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

// Python's callbacks, from fmm_openmm/integration/native/callbacks.py.
extern Callbacks python;

// Number of changes of force definitions so far. Kernels request their charges again when it has
// changed.
extern volatile int64_t revision;

}  // namespace fmm
