// nibble: the program. Lists the commands, runs one, prints what went wrong and leaves with its exit code.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "command.h"
#include "core/error.h"
#include "core/version.h"
#include "io/suggest.h"
#include "kernels/cpu/cpu_info.h"

namespace nibble {
namespace {

constexpr const Command* commands[] = {&train_command,  &eval_command,    &generate_command, &plan_command,
                                       &config_command, &data_command,    &ckpt_command,     &verify_command,
                                       &report_command, &inspect_command, &bench_command,    &profile_command,
                                       &doctor_command};

void print_overview(std::FILE* to) {
  fmt::print(to, "nibble {}: pre-trains large language models on this machine\n\nusage: nibble COMMAND [arguments]\n\n",
             version);
  for (const Command* c : commands) fmt::print(to, "  {:<10}{}\n", c->name, c->summary);
  fmt::print(to, "  {:<10}{}\n", "help", "help of a command: nibble help train");
  fmt::print(to, "\nstart: nibble train book.txt\n");
}

void print_help(const Command& c) {
  fmt::print("NAME\n    nibble {}: {}\n\nSYNOPSIS\n    {}\n\n{}", c.name, c.summary, c.synopsis, c.help);
}

const Command& find_command(std::string_view name) {
  for (const Command* c : commands)
    if (c->name == name) return *c;
  std::vector<std::string> names{"help"};
  std::string list;
  for (const Command* c : commands)
    names.emplace_back(c->name), list += fmt::format("{}{}", list.empty() ? "" : ", ", c->name);
  const std::vector<std::string> near = nearest(name, names);
  throw Error("E007", "unknown command '{}'", name)
      .where("argument 1")
      .expected(list, std::string(name))
      .hint("{}", near.empty() ? "nibble help" : "nibble " + near.front());
}

int run(const std::vector<std::string>& words) {
  if (words.empty()) return print_overview(stderr), exit_usage;
  if (words[0] == "--version")
    return fmt::print("nibble {}\ncommit {}\ncompiler {}\ncpu {}\n", version, commit, compiler, cpu_features()),
           exit_done;
  if (words[0] == "help" || words[0] == "--help" || words[0] == "-h") {
    if (words.size() == 1)
      print_overview(stdout);
    else
      print_help(find_command(words[1]));
    return exit_done;
  }
  const Command& command = find_command(words[0]);
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (std::ranges::any_of(rest, [](const std::string& w) { return w == "--help" || w == "-h"; }))
    return print_help(command), exit_done;
  return command.run(rest);
}

int guarded(const std::vector<std::string>& words) {
  constexpr size_t most = 20;
  try {
    return run(words);
  } catch (const Errors& list) {
    for (size_t i = 0; i < std::min(most, list.errors.size()); ++i)
      fmt::print(stderr, "{}\n", list.errors[i].message());
    if (list.errors.size() > most) fmt::print(stderr, "and {} more errors\n", list.errors.size() - most);
    return list.errors.empty() ? exit_internal : list.errors.front().exit_code();
  } catch (const Error& e) {
    fmt::print(stderr, "{}\n", e.message());
    return e.exit_code();
  } catch (const std::bad_alloc&) {
    fmt::print(stderr,
               "error[E107]: out of memory\n  hint: nibble plan with the same arguments shows what the run needs\n");
    return exit_config;
  } catch (const std::exception& e) {
    fmt::print(stderr,
               "error[E901]: unexpected failure: {}\n  hint: this is a bug in nibble, please report it with the "
               "command line\n",
               e.what());
    return exit_internal;
  }
}

// A reader that has seen enough (`nibble config keys | head`) is no failure. Training goes on instead: train/signals.
void on_closed_pipe(int) { _exit(exit_done); }

// A stream that was closed before the start would give its number to the next file that is opened, and text meant for
// people would land in it.
void open_missing_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) close(fd);
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  nibble::open_missing_streams();
  std::signal(SIGPIPE, nibble::on_closed_pipe);
  return nibble::guarded({argv + 1, argv + argc});
}
