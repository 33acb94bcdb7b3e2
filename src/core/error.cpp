#include "core/error.h"

#include <array>
#include <utility>

namespace nibble {
namespace {

// Where the exit code is not the one of the id's hundred.  Source: spec/training.md 7.2.
constexpr std::pair<std::string_view, int> exit_of[] = {
    {"E005", exit_no_input},      {"E113", exit_usage},         {"E114", exit_data},
    {"E201", exit_no_input},      {"E202", exit_no_input},      {"E203", exit_no_input},
    {"E204", exit_no_input},      {"E304", exit_config},        {"E305", exit_unavailable},
    {"E502", exit_usage},         {"E605", exit_cannot_create}, {"E701", exit_numeric},
    {"E702", exit_numeric},       {"E705", exit_numeric},       {"E706", exit_numeric},       {"E801", exit_io},
    {"E802", exit_cannot_create}, {"E803", exit_cannot_create}, {"E804", exit_done},
    {"E901", exit_internal}};

}  // namespace

std::string Error::message() const {
  std::string s = fmt::format("error[{}]: {}", id, what_text);
  if (!where_text.empty()) s += "\n  where: " + where_text;
  if (!expected_text.empty() || !got_text.empty())
    s += fmt::format("\n  expected: {}   got: {}", expected_text, got_text);
  if (!hint_text.empty()) s += "\n  hint: " + hint_text;
  return s;
}

const char* Error::what() const noexcept {
  if (cached_.empty()) cached_ = message();
  return cached_.c_str();
}

int Error::exit_code() const {
  for (const auto& [name, code] : exit_of)
    if (name == id) return code;
  if (id.size() < 2) return exit_internal;
  switch (id[1]) {
    case '0':
      return exit_usage;
    case '1':
      return exit_config;
    case '2':
      return exit_no_input;
    case '3':
    case '4':
      return exit_data;
    case '5':
      return exit_unavailable;
    case '6':
      return exit_ranks;
    case '7':
      return exit_numeric;
    case '8':
      return exit_io;
    default:
      return exit_internal;
  }
}

void internal_error(std::string_view what, std::string_view file, int line) {
  throw Error("E901", "broken invariant: {}", what)
      .where("{}:{}", file.substr(file.rfind("/src/") + 1), line)
      .hint("this is a bug in nibble, please report it with the command line; nothing was written after the fault");
}

}  // namespace nibble
