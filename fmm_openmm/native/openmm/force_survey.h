// The plugin's knowledge of OpenMM's forces.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "openmm/NonbondedForce.h"
#include "openmm/internal/ContextImpl.h"
#include "pair_energy.h"

namespace fmm {

// Maximum number of types of sites; the table of coefficients has an entry for every pair.
static const int MAX_TYPES = 2048;

// Whether all kernels of a force run on OpenMM's current stream and add to the force buffer by
// atomics or not at all, so that forces may be added concurrently.
bool addsByAtomics(const OpenMM::Force& force);

// Why the plugin cannot compute the Lennard-Jones pairs of a NonbondedForce; empty if it can.
std::string obstacleOf(const OpenMM::NonbondedForce& force);

// The same for a CustomNonbondedForce. Sets `energy` if the result is empty.
std::string obstacleOf(const OpenMM::CustomNonbondedForce& force, PairEnergy& energy);

std::vector<std::pair<int, int>> exclusionsOf(const OpenMM::CustomNonbondedForce& force);

// Name of another force of the Context, or of its integrator, that makes OpenMM build its list of
// all near pairs regardless of who computes those of `force`, or that would be much slower without
// that list; empty if there is none.
std::string forceWithList(OpenMM::ContextImpl& context, const OpenMM::Force& force);

}  // namespace fmm
