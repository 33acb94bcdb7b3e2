// Runs the program as a user does: arguments, exit code, both streams, signals, a terminal.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "io/json.h"
#include "temporary_folder.h"

extern char** environ;

namespace nibble {

struct Ended {
  int exit = -1;  // 128 + signal if one ended it
  std::string out, err;
};

class Running {
 public:
  struct Options {
    std::string folder = ".";  // working directory
    std::map<std::string, std::string> environment = {};
    bool terminal = false;    // stdout and stderr are one pseudo-terminal, read as out
    bool unread = false;      // nobody reads stdout and stderr
    bool no_streams = false;  // stdin, stdout and stderr are no open files at all
  };
  Running(const std::vector<std::string>& arguments, const Options& options) {
    std::vector<std::string> environment = environment_of(options);
    std::vector<char*> argv, envp;
    std::vector<std::string> words = {NIBBLE_BINARY};
    words.insert(words.end(), arguments.begin(), arguments.end());
    for (std::string& w : words) argv.push_back(w.data());
    for (std::string& e : environment) envp.push_back(e.data());
    argv.push_back(nullptr), envp.push_back(nullptr);
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    if (options.terminal) {
      winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
      pid_ = ::forkpty(&out_, nullptr, nullptr, &size);
    } else {
      EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
      EXPECT_EQ(::pipe2(err, O_CLOEXEC), 0);
      ::fcntl(out[1], F_SETPIPE_SZ, 4096);  // about twenty step lines: a run that is not read cannot get far ahead
      pid_ = ::fork();
    }
    if (pid_ == 0) {
      for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE})
        ::signal(s, SIG_DFL);  // whatever started the tests
      if (!options.terminal) ::dup2(out[1], 1), ::dup2(err[1], 2);
      if (options.no_streams) ::close(0), ::close(1), ::close(2);
      if (::chdir(options.folder.c_str()) == 0) ::execve(argv[0], argv.data(), envp.data());
      ::_exit(126);
    }
    if (options.terminal) return;
    ::close(out[1]), ::close(err[1]);
    out_ = out[0], err_ = err[0];
    if (options.unread) ::close(out_), ::close(err_), out_ = err_ = -1;
  }
  ~Running() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), wait();
    for (const int fd : {out_, err_})
      if (fd >= 0) ::close(fd);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void send(int signal) const { EXPECT_EQ(::kill(pid_, signal), 0); }
  /// Reads until a stream holds `text`; the other one is left alone. False if the stream ends first, or after a minute.
  bool read_out_until(const std::string& text) { return read_until(out_, outcome_.out, text); }
  bool read_err_until(const std::string& text) { return read_until(err_, outcome_.err, text); }
  /// Reads everything until the program has ended.
  Ended finish() {
    while (out_ >= 0 || err_ >= 0) {
      pollfd fds[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
      if (::poll(fds, 2, 60'000) <= 0) break;
      if (fds[0].revents != 0 && !read_some(out_, outcome_.out)) ::close(out_), out_ = -1;
      if (fds[1].revents != 0 && !read_some(err_, outcome_.err)) ::close(err_), err_ = -1;
    }
    wait();
    return outcome_;
  }

 private:
  static std::vector<std::string> environment_of(const Options& options) {
    std::vector<std::string> list;
    for (char** e = environ; *e != nullptr; ++e) {
      const std::string name(*e, std::strcspn(*e, "="));
      if (name != "TERM" && name != "NO_COLOR" && !name.starts_with("M_") && !options.environment.contains(name))
        list.emplace_back(*e);
    }
    for (const auto& [name, value] : options.environment) list.push_back(name + "=" + value);
    return list;
  }
  static bool read_some(int fd, std::string& to) {
    char buffer[4096];
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n > 0) to.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }
  static bool read_until(int fd, std::string& to, const std::string& text) {
    while (to.find(text) == std::string::npos) {
      pollfd one{fd, POLLIN, 0};
      if (::poll(&one, 1, 60'000) <= 0 || !read_some(fd, to)) return false;
    }
    return true;
  }
  void wait() {
    if (pid_ <= 0) return;
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    outcome_.exit = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    pid_ = -1;
  }
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  Ended outcome_;
};

inline Ended nibble_in(const std::string& folder, const std::vector<std::string>& arguments) {
  return Running(arguments, {.folder = folder}).finish();
}

/// A folder with a text, book.txt, and a configuration, tiny.yml, of a model of 35,000 weights.
class Workplace : public TemporaryFolder {
 public:
  Workplace() {
    std::ofstream book(*this / "book.txt");
    for (int i = 1; i <= 400; ++i)
      book << "line " << i << " of the little book about the number " << i * 7 % 13 << " and its friends\n";
    std::ofstream(*this / "tiny.yml")
        << "model_name: default\noverride_model_config: true\nbase_emb_dim: 32\nbase_mlp_dim: "
           "64\nbase_num_query_heads: 2\n"
           "base_num_kv_heads: 1\nhead_dim: 16\nbase_num_decoder_layers: 2\nvocab_size: 260\ntokenizer_type: byte\n"
           "max_target_length: 32\nper_device_batch_size: 2\nlearning_rate: 1e-2\nthreads: 1\n";
  }
  Ended operator()(const std::vector<std::string>& arguments) const { return nibble_in(path(), arguments); }
  /// nibble train tiny.yml on the book.
  std::vector<std::string> train(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"train", "tiny.yml", "train_files=[book.txt]"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string content(const std::string& name) const { return content_of(*this / name); }
};

/// metrics.jsonl of a run without time fields: the last record of each kind and step; no events.
inline std::map<std::pair<std::string, int64_t>, std::string> metrics_of(const std::string& run) {
  std::map<std::pair<std::string, int64_t>, std::string> last;
  std::ifstream in(run + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const Json j = Json::parse(line);
    Json kept = Json::object();
    if (j["kind"] == "event") continue;
    for (const auto& [key, value] : j.items())
      if (key != "time" && !key.starts_with("perf/") && key != "eval/step_time_seconds") kept[key] = value;
    last[{j["kind"], j["step"]}] = kept.dump();
  }
  return last;
}

inline std::vector<std::string> events_of(const std::string& run) {
  std::vector<std::string> list;
  std::ifstream in(run + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);)
    if (const Json j = Json::parse(line); j["kind"] == "event") list.push_back(j["name"]);
  return list;
}

/// Bytes of every file of a checkpoint but run_info.json.
inline std::map<std::string, std::string> checkpoint_bytes(const std::filesystem::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(checkpoint))
    if (entry.is_regular_file() && entry.path().filename() != "run_info.json") {
      std::ifstream file(entry.path(), std::ios::binary);
      files[std::filesystem::relative(entry.path(), checkpoint).string()] = {std::istreambuf_iterator<char>(file), {}};
    }
  return files;
}

}  // namespace nibble
