// Where what `nibble bench` measures of a machine is kept between runs, and the key machine= that names another file.
#pragma once
#include <filesystem>

#include "io/config.h"
#include "plan/machine.h"

namespace nibble {

/// $XDG_CACHE_HOME/nibble/machine-<cpu>-<hash>.json, else under ~/.cache, else in the working folder.
std::filesystem::path own_machine_path();

struct MachineFile {
  std::filesystem::path path;
  Machine machine = this_machine();
  bool exists = false;
};
/// machine=PATH; without it this machine's own file, which need not exist. Errors: E113 for a path that does not, E114.
MachineFile find_machine(const Config& config);
/// Reads a file if it is there.
MachineFile read_machine(const std::filesystem::path& path);
/// Replaces the file; makes its folder. Errors: E801, E803.
void write_machine(const std::filesystem::path& path, const Machine& machine);

}  // namespace nibble
