// What the plugin knows of OpenMM's other forces.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "openmm/NonbondedForce.h"
#include "openmm/internal/ContextImpl.h"
#include "pair_energy.h"

namespace fmm {

static const int MAX_TYPES = 2048;  // of sites: every pair of them has coefficients

// Whether the kernels of a force add to the force buffer by atomics, or not at all, so that others
// may add meanwhile, and all run on OpenMM's current stream.
bool addsByAtomics(const OpenMM::Force& force);

// Why the Lennard-Jones pairs of a NonbondedForce cannot be computed among its sites, or nothing.
std::string obstacleOf(const OpenMM::NonbondedForce& force);

// The same of a CustomNonbondedForce; its energy if there is none.
std::string obstacleOf(const OpenMM::CustomNonbondedForce& force, PairEnergy& energy);

std::vector<std::pair<int, int>> exclusionsOf(const OpenMM::CustomNonbondedForce& force);

// A force of the Context, or its integrator, which has OpenMM list all pairs of particles near each
// other whoever computes those of `force`, or has it compute many more without; nothing if there is
// none.
std::string forceWithList(OpenMM::ContextImpl& context, const OpenMM::Force& force);

}  // namespace fmm
