// The files of configs/ as the build packs them into the program (scripts/embed_configs.cmake), in byte order.
#pragma once
#include <string_view>

namespace nibble {
struct PackagedFile {
  std::string_view path;  // under configs/
  std::string_view text;
};
extern const PackagedFile packaged_files[];
extern const int packaged_file_count;
}  // namespace nibble
