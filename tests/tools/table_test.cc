#include "tools/bench/table.h"

#include <gtest/gtest.h>

namespace kf::tools {
namespace {

TEST(Table, IsMarkdownWithAlignedColumns) {
  Table table({"policy", "x"});
  table.Add({"FULL", "12.5"});
  table.Add({"KEYFORMER", "1"});
  EXPECT_EQ(table.Markdown(),
            "| policy    | x    |\n"
            "|-----------|------|\n"
            "| FULL      | 12.5 |\n"
            "| KEYFORMER | 1    |\n");
}

}  // namespace
}  // namespace kf::tools
