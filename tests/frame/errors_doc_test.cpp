// docs/errors.md: every id that the sources raise has a row there, with the exit code that the program leaves with.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>

#include "core/error.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

std::map<std::string, int> documented() {
  static const std::regex row(R"(\n\| (E\d{3}) \| (\d+) \| \S)");
  const std::string text = read(fs::path(NIBBLE_SOURCE_DIR) / "docs/errors.md");
  std::map<std::string, int> codes;
  for (std::sregex_iterator it(text.begin(), text.end(), row), end; it != end; ++it)
    EXPECT_TRUE(codes.emplace((*it)[1], std::stoi((*it)[2])).second) << (*it)[1] << " has two rows";
  return codes;
}

TEST(FrameErrors, EveryRowHasTheExitCodeOfTheProgram) {
  const auto codes = documented();
  EXPECT_GE(codes.size(), 50u);
  for (const auto& [id, code] : codes) EXPECT_EQ(Error(id, "x").exit_code(), code) << id;
}

TEST(FrameErrors, EveryIdOfTheSourcesIsDocumented) {
  static const std::regex id(R"x("(E\d{3})")x");
  const auto codes = documented();
  size_t found = 0;
  for (const char* top : {"src", "apps"})
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(NIBBLE_SOURCE_DIR) / top)) {
      if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
      const std::string text = read(entry.path());
      for (std::sregex_iterator it(text.begin(), text.end(), id), end; it != end; ++it, ++found)
        EXPECT_TRUE(codes.count((*it)[1])) << (*it)[1] << " of " << entry.path() << " is not in docs/errors.md";
    }
  EXPECT_GT(found, 20u);
}

}  // namespace
}  // namespace nibble
