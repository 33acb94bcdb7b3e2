// The terminal of a run: obligation T60 of spec/training.md; on a real one: tests/apps/commands_test.cpp.
#include "train/console.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(TrainingT60, TextOfAModelCannotControlATerminal) {
  EXPECT_EQ(printable("two\nlines\tand caf\xc3\xa9 \xe2\x82\xac"), "two\nlines\tand caf\xc3\xa9 \xe2\x82\xac");
  EXPECT_EQ(printable("\x1b[31m\r\x7f"), "\xef\xbf\xbd[31m\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\xef\xbf\xbd"
            "2J");                                       // CSI in one character
  EXPECT_EQ(printable("\xc2\xa0\xc2"), "\xc2\xa0\xc2");  // no-break space, and a cut character
  EXPECT_EQ(printable(std::string(1, '\0')), "\xef\xbf\xbd");
}

TEST(TrainingT60, ProgressBar) {
  EXPECT_EQ(progress_bar(0, 4), "[....]");
  EXPECT_EQ(progress_bar(0.5, 4), "[##..]");
  EXPECT_EQ(progress_bar(7, 4), "[####]");
}

TEST(TrainingT60, QuietKeepsResults) {
  testing::internal::CaptureStdout();
  Console console(true);
  console.line("a line");
  console.result("a result");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "a result\n");
  EXPECT_FALSE(console.shows_status());
}

}  // namespace
}  // namespace nibble
