// Which particles OpenMM may exchange when it reorders atoms, and which it must keep together.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "openmm/common/ComputeForceInfo.h"

namespace fmm {

// Particles are identical if they are of the same type, groups of them if
// they are of the same kind.
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
    std::vector<int> kind;  // of every group, or empty: of one
};

// Types that particles have in common, or kinds of exceptions:
// a number for every one that is different.
class Numbering {
public:
    int of(const std::vector<double>& parameters) {
        return numbers.emplace(parameters, numbers.size()).first->second;
    }
    int count() const { return numbers.size(); }

private:
    std::map<std::vector<double>, int> numbers;
};

// The particles of an excluded pair belong to one molecule. OpenMM moves molecules into the box as
// wholes, so that the pair keeps the distance of the coordinates that the user gave. Charges are
// not compared: they are looked up by the user's index, so molecules with other charges may take
// each other's place.
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
