// How Python answers what the plugin asks.
#pragma once
#include <map>
#include <string>

#include "abi.h"
#include "openmm/OpenMMException.h"

namespace fmm {

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

// Python's side: fmm_openmm/integration/native.py.
extern Callbacks python;

// Counts changes of force definitions; kernels ask for the charges again when it has changed.
extern volatile int64_t revision;

}  // namespace fmm
