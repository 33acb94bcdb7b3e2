// A command of the program: read the command line, call the library, print, return the exit code.
// main.cpp lists them; `nibble help` and the usage errors come from the same table.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct Command {
  std::string_view name;                                  // "train"
  std::string_view synopsis;                              // "nibble train [config.yml | text files] [key=value ...]"
  std::string_view summary;                               // one line for the list of commands
  std::string_view help;                                  // man-page body: DESCRIPTION, KEYS, EXIT STATUS, EXAMPLES
  int (*run)(const std::vector<std::string>& arguments);  // words after the command name; throws Error or Errors
};

extern const Command train_command, eval_command, generate_command, plan_command, config_command, data_command,
    ckpt_command, verify_command, report_command, bench_command, profile_command, doctor_command, inspect_command;

}  // namespace nibble
