// Options that several commands take.
#pragma once
#include <string>

#include "core/error.h"
#include "io/config.h"

namespace nibble {

/// The number that follows --name, or `otherwise` where the option was not given. Errors: E002.
inline int count_option(const Resolved& resolved, const std::string& name, int otherwise) {
  const auto at = resolved.options.find(name);
  if (at == resolved.options.end()) return otherwise;
  int n = 0;
  for (const char c : at->second) n = c >= '0' && c <= '9' && n < 100000 ? 10 * n + (c - '0') : -1000000;
  if (n < 1 || at->second.empty())
    throw Error("E002", "--{} {}", name, at->second).expected("an integer from 1 on", at->second).hint("--{} 5", name);
  return n;
}

/// Resolves a command's words with model_name=nibble-34m where they name no model.
inline Resolved resolve_with_model(std::vector<std::string> words, const ResolveOptions& options) {
  Resolved resolved = resolve(words, options);
  if (resolved.config.is_set("model_name")) return resolved;
  words.insert(words.begin(), "model_name=nibble-34m");
  return resolve(words, options);
}

}  // namespace nibble
