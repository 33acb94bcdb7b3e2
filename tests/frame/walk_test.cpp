// docs/walk.md leads a reader from a token in a file to an updated weight: the files and functions it names exist, and
// the way is at most ten hops long. In the text, `path` names a file and `name()` a function of the file named last.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Step {
  std::string file;                    // from the root of the repository
  std::vector<std::string> functions;  // without parentheses
};

struct Walk {
  std::vector<Step> steps;
  int hops = 0;  // numbered paragraphs
};

Walk read_walk(const std::string& text) {
  static const std::regex mark(
      R"(`((?:src|apps|configs)/[A-Za-z0-9_./-]+)`|`([A-Za-z_][A-Za-z0-9_:]*)\(\)`|\n(\d+)\. )");
  Walk walk;
  for (std::sregex_iterator it(text.begin(), text.end(), mark), end; it != end; ++it) {
    const std::smatch& m = *it;
    if (m[1].matched) {
      walk.steps.push_back({m[1], {}});
    } else if (m[2].matched && !walk.steps.empty()) {
      walk.steps.back().functions.push_back(m[2]);
    } else if (m[3].matched) {
      walk.hops = std::max(walk.hops, std::stoi(m[3]));
    }
  }
  return walk;
}

// Whether the text holds `name` (its last part, if qualified) followed by an opening parenthesis or angle bracket.
bool mentions(const std::string& text, const std::string& name) {
  const std::string last = name.substr(name.rfind(':') == std::string::npos ? 0 : name.rfind(':') + 1);
  return std::regex_search(text, std::regex("\\b" + last + "\\s*[(<]"));
}

std::string read(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

TEST(FrameWalk, IsParsed) {
  const Walk walk = read_walk("\n1. In `src/data/loader.cpp`, `Loader::next()` and `skip()`.\n2. `apps/x.cpp`\n");
  ASSERT_EQ(walk.steps.size(), 2u);
  EXPECT_EQ(walk.steps[0].functions, (std::vector<std::string>{"Loader::next", "skip"}));
  EXPECT_EQ(walk.steps[1].file, "apps/x.cpp");
  EXPECT_EQ(walk.hops, 2);
  EXPECT_TRUE(mentions("Batch Loader::next(int64_t g) {", "Loader::next"));
  EXPECT_FALSE(mentions("Batch Loader::next_one(int64_t g) {", "Loader::next"));
}

TEST(FrameWalk, FilesAndFunctionsExist) {
  const fs::path root = NIBBLE_SOURCE_DIR;
  const Walk walk = read_walk(read(root / "docs/walk.md"));
  EXPECT_GE(walk.hops, 5);
  EXPECT_LE(walk.hops, 10);
  size_t functions = 0;
  for (const Step& step : walk.steps) {
    if (!fs::is_regular_file(root / step.file)) {
      ADD_FAILURE() << "docs/walk.md names " << step.file << ", which does not exist";
      continue;
    }
    const std::string text = read(root / step.file);
    functions += step.functions.size();
    for (const std::string& name : step.functions)
      EXPECT_TRUE(mentions(text, name)) << "docs/walk.md names " << name << "() of " << step.file;
  }
  EXPECT_GE(functions, 8u);
}

}  // namespace
