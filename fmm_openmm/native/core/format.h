// The format of serialised programs.
// Written by python -m fmm_openmm.backends.cuda.abi: change it there.
// clang-format off
#pragma once

namespace fmm {

constexpr char MAGIC[] = {'F', 'M', 'M', 'p', 'r', 'o', 'g', 0};
constexpr int VERSION = 13;

enum StepKind { LAUNCH, MEMSET, RECORD, WAIT };

enum BufferKind { OWN, EXTERNAL, FLAG };

// The stream of lower priority.
constexpr int BACKGROUND = 1;

}  // namespace fmm
