// Runs a command as main does: what it printed, its exit code, and its first error.
#pragma once
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "../../apps/nibble/command.h"
#include "core/error.h"

namespace nibble {

struct Outcome {
  int exit = -1;
  std::string out, id, message;  // id and message of the first error, empty without one
};

inline Outcome outcome_of(const Command& command, const std::vector<std::string>& arguments) {
  Outcome r;
  testing::internal::CaptureStdout();
  const auto failed = [&](const Error& e) { r.exit = e.exit_code(), r.id = e.id, r.message = e.message(); };
  try {
    r.exit = command.run(arguments);
  } catch (const Errors& list) {
    failed(list.errors.at(0));
  } catch (const Error& e) {
    failed(e);
  }
  std::fflush(stdout);
  r.out = testing::internal::GetCapturedStdout();
  return r;
}

}  // namespace nibble
