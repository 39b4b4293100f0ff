// Identities of particles, by which OpenMM decides which molecules it may exchange when it reorders
// atoms.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "openmm/common/ComputeForceInfo.h"

namespace fmm {

// Particles are identical if their types are equal, groups of particles if their kinds are equal.
class Identities : public OpenMM::ComputeForceInfo {
public:
    Identities(const std::vector<int>& type, const std::vector<std::pair<int, int>>& groups,
               const std::vector<int>& kind)
        : type(type), groups(groups), kind(kind) {}
    bool areParticlesIdentical(int particle1, int particle2) override {
        return type[particle1] == type[particle2];
    }
    int getNumParticleGroups() override { return groups.size(); }
    void getParticlesInGroup(int index, std::vector<int>& particles) override {
        particles = {groups[index].first, groups[index].second};
    }
    bool areGroupsIdentical(int group1, int group2) override {
        return kind.empty() || kind[group1] == kind[group2];
    }

private:
    std::vector<int> type;  // of every particle
    std::vector<std::pair<int, int>> groups;
    std::vector<int> kind;  // of every group; empty if all are of one kind
};

// Assigns consecutive numbers to distinct sets of parameters.
class Numbering {
public:
    int numberOf(const std::vector<double>& parameters) {
        return numbers.emplace(parameters, numbers.size()).first->second;
    }
    int count() const { return numbers.size(); }

private:
    std::map<std::vector<double>, int> numbers;
};

// Declares excluded pairs as groups, so that the particles of a pair belong to one molecule. OpenMM
// wraps molecules as a whole, so that the pair keeps the distance between the coordinates that the
// user set. Charges are not compared: they are looked up by the user's particle index, so that
// OpenMM may exchange molecules with different charges.
class ExcludedPairs : public OpenMM::ComputeForceInfo {
public:
    explicit ExcludedPairs(const std::string& bytes) : pairs(bytes.size() / sizeof(int32_t)) {
        std::memcpy(pairs.data(), bytes.data(), bytes.size());
    }
    int getNumParticleGroups() override { return pairs.size() / 2; }
    void getParticlesInGroup(int index, std::vector<int>& particles) override {
        particles = {pairs[2 * index], pairs[2 * index + 1]};
    }

private:
    std::vector<int32_t> pairs;
};

}  // namespace fmm
