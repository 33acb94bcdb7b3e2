// Dependencies point one way: every #include "folder/..." of src/ follows the table of docs/architecture.md.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Folder {
  const char* name;
  std::vector<std::string> may_include;  // besides itself
};

// A folder may include only folders of earlier rows, so the table cannot hold a cycle (checked below).
// clang-format off
const Folder folders[] = {
    {"core",     {}},
    {"numerics", {"core"}},
    {"graph",    {"core"}},
    {"ops",      {"core", "graph"}},
    {"recipes",  {"core"}},
    {"passes",   {"core", "graph", "ops", "recipes"}},
    {"models",   {"core", "numerics", "graph", "ops"}},
    {"kernels",  {"core", "numerics"}},
    {"runtime",  {"core", "numerics", "graph", "ops", "passes", "kernels"}},
    {"plan",     {"core", "graph", "ops", "passes", "models", "kernels", "runtime"}},
    {"io",       {"core", "numerics"}},
    {"data",     {"core", "io"}},
    {"sample",   {"core", "numerics", "graph", "ops", "passes", "plan", "runtime", "models", "io", "data"}},
    {"train",    {"core", "numerics", "graph", "ops", "recipes", "passes", "plan", "runtime", "models", "io", "data", "sample"}},
    {"bench",    {"core", "numerics", "graph", "ops", "passes", "kernels", "runtime", "models", "plan", "io", "sample", "train"}},
    {"report",   {"core"}}};
// clang-format on

// The folders that this text of a file in `folder` includes although it may not.
std::vector<std::string> forbidden_includes(const std::string& folder, const std::string& text) {
  static const std::regex include(R"(^[ \t]*#[ \t]*include[ \t]*"([a-z_]+)/)", std::regex::multiline);
  std::set<std::string> allowed = {folder};
  for (const Folder& f : folders)
    if (f.name == folder) allowed.insert(f.may_include.begin(), f.may_include.end());
  std::vector<std::string> out;
  for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it)
    if (!allowed.count((*it)[1])) out.push_back((*it)[1]);
  return out;
}

std::string read(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

bool is_source(const fs::path& file) {
  return file.extension() == ".h" || file.extension() == ".cpp" || file.extension() == ".inc";
}

TEST(FrameIncludes, EveryFolderHasARow) {
  std::set<std::string> known;
  for (const Folder& f : folders) known.insert(f.name);
  for (const auto& entry : fs::directory_iterator(fs::path(NIBBLE_SOURCE_DIR) / "src"))
    if (entry.is_directory()) {
      EXPECT_TRUE(known.count(entry.path().filename().string())) << entry.path() << " is in no row of the table";
    }
}

TEST(FrameIncludes, TheTableHasNoCycle) {
  std::set<std::string> earlier;
  for (const Folder& f : folders) {
    for (const std::string& other : f.may_include) EXPECT_TRUE(earlier.count(other)) << f.name << " -> " << other;
    earlier.insert(f.name);
  }
}

TEST(FrameIncludes, AForbiddenIncludeIsFound) {
  const std::string text = "#include \"core/error.h\"\n  #  include \"data/loader.h\"\n// #include \"train/x.h\"\n";
  EXPECT_EQ(forbidden_includes("kernels", text), (std::vector<std::string>{"data"}));
  EXPECT_EQ(forbidden_includes("train", text), (std::vector<std::string>{}));
}

TEST(FrameIncludes, PointOneWay) {
  int files = 0;
  for (const Folder& f : folders) {
    const fs::path folder = fs::path(NIBBLE_SOURCE_DIR) / "src" / f.name;
    if (!fs::exists(folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!is_source(entry.path())) continue;
      ++files;
      for (const std::string& other : forbidden_includes(f.name, read(entry.path())))
        ADD_FAILURE() << fs::relative(entry.path(), NIBBLE_SOURCE_DIR).string() << " includes " << other
                      << "/, which src/" << f.name << " may not";
    }
  }
  EXPECT_GT(files, 30);
}

// A file of 600 lines is read in one sitting; a table of data may be longer.
TEST(FrameIncludes, FilesAreShort) {
  for (const char* top : {"src", "apps"})
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(NIBBLE_SOURCE_DIR) / top)) {
      if (!is_source(entry.path()) || entry.path().extension() == ".inc") continue;
      const std::string text = read(entry.path());
      EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 650) << entry.path();
    }
}

}  // namespace
