#include "train/machine_file.h"

#include <cstdlib>

#include "core/error.h"
#include "io/file.h"

namespace nibble {
namespace {

std::filesystem::path cache_folder() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (cache.starts_with("/")) return std::filesystem::path(cache) / "nibble";
  if (home.starts_with("/")) return std::filesystem::path(home) / ".cache" / "nibble";
  return "nibble_machine";
}

}  // namespace

std::filesystem::path own_machine_path() { return cache_folder() / machine_file_name(this_machine()); }

MachineFile read_machine(const std::filesystem::path& path) {
  MachineFile file{.path = path};
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return file;
  file.machine = parse_machine(read_file(path), path.string()), file.exists = true;
  return file;
}

MachineFile find_machine(const Config& config) {
  const std::string& name = config.get_string("machine");
  if (name.empty()) return read_machine(own_machine_path());
  MachineFile file = read_machine(name);
  if (!file.exists)
    throw Error("E113", "machine {} is no file; machines by name are not in this version", name)
        .where("machine={}", name)
        .expected("a file that `nibble bench --calibrate --out FILE` wrote", name)
        .hint("machine= without a value means this machine");
  return file;
}

void write_machine(const std::filesystem::path& path, const Machine& machine) {
  if (path.has_parent_path()) make_directories(path.parent_path());
  replace_file(path, machine_text(machine));
}

}  // namespace nibble
