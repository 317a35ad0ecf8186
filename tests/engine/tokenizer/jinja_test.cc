// The Jinja subset: expected texts are those of Jinja 3 with trim_blocks and
// lstrip_blocks on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/tokenizer/chat_template.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using ::kf::testing::IsOk;
using ::kf::testing::StatusIs;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

absl::StatusOr<std::string> Render(const std::string& source,
                                   const std::vector<ChatMessage>& messages = {
                                       {"user", "Hi"}}) {
  const auto parsed = ChatTemplate::Parse(source, "<s>", "</s>");
  if (!parsed.ok()) return parsed.status();
  const auto text = parsed->Render(messages);
  if (!text.ok()) return text.status();
  return std::string(text->text());
}

struct Case {
  std::string source;
  std::string want;
};

void ExpectAll(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.source);
    const auto got = Render(c.source);
    ASSERT_THAT(got, IsOk());
    EXPECT_EQ(*got, c.want);
  }
}

TEST(Jinja, WhiteSpaceControl) {
  ExpectAll({
      {"a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"},
      {"a {%- if true -%} \n b {%- endif %} c", "ab c"},
      {"a\n  {%+ if true %}b{% endif %}", "a\n  b"},
      {"{% if true +%}\nb{% endif %}", "\nb"},
      {"a\n  {{ 'x' }}\nb", "a\n  x\nb"},
      {"a \n {{- 'x' -}} \n b", "axb"},
      {"a\n  {# note #}\nb", "a\nb"},
      {"x {% if true %} y{% endif %}", "x  y"},
      {"a\r\n{% if true %}\r\nb{% endif %}", "a\nb"},
      {"{% if true %}\n  {% if true %}\nz\n{% endif %}\n{% endif %}", "z\n"},
  });
}

TEST(Jinja, Expressions) {
  ExpectAll({
      {"{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }}",
       "7 9 3 -4"},
      {"{{ -7 % 3 }} {{ 7 % -3 }} {{ 1 - 2 - 3 }}", "2 -2 -4"},
      {"{{ 'a' ~ 1 ~ true ~ none ~ missing }}", "a1TrueNone"},
      {"{{ 'a' 'b' + \"c\\n\\t\\\\\\'\\u00e9\" }}", "abc\n\t\\'é"},
      {"{{ 1 < 2 < 3 }} {{ 1 == 1.__x if false else 'e' }}", "True e"},
      {"{{ 'b' in 'abc' }} {{ 2 not in [1, 3] }} {{ 'k' in {'k': 1} }}",
       "True True True"},
      {"{{ not true or true and false }} {{ not not 1 }}", "False True"},
      {"{{ '' or 'x' }} {{ 'a' and 'b' }} {{ 'y' if 0 }}", "x b "},
      {"{{ [1, 2, 3][-1] }}{{ [1, 2, 3][1:][0] }}{{ 'héllo'[1:3] }}", "32él"},
      {"{{ 'abcd'[::-1] }}{{ 'abcd'[-3:-1] }}{{ 'abc'[7:] }}", "dcbabc"},
      {"{{ messages[0].role }} {{ messages[0]['content'] }}", "user Hi"},
      {"{{ 'a' == 'a' and 1 != 2 and true == 1 and none == none }}", "True"},
      {"{{ ({'a': {'b': 2}}).a.b }}{{ {'a': {'b': 3}}['a']['b']}}", "23"},
      {"{{ bos_token + eos_token }}", "<s></s>"},
      {"{{ 'x' | upper ~ 'Y' | lower }} {{ 'A' + ' b ' | trim + 'C' }}",
       "Xy AbC"},
  });
}

TEST(Jinja, FiltersTestsAndMethods) {
  ExpectAll({
      {"{{ ' x ' | trim }}|{{ 'ÄÖ' | lower }}|{{ 'é' | upper }}", "x|äö|É"},
      {"{{ 'héé' | length }} {{ [1, 2] | count }} {{ missing | length }}",
       "3 2 0"},
      {"{{ missing | default('d') }}{{ '' | default('e', true) }}"
       "{{ '' | default('f', boolean=true) }}{{ 'g' | d('h') }}",
       "defg"},
      {"{{ [1, 'a'] | join(', ') }} {{ 'abc' | first }}{{ [4, 5] | last }}",
       "1, a a5"},
      {"{{ 'a-b-c' | replace('-', '+') }} {{ 3 | string + '!' }}", "a+b+c 3!"},
      {"{{ ' x '.strip() }}{{ 'xxy'.lstrip('x') }}{{ 'a\\n\\n'.rstrip() }}",
       "xya"},
      {"{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('ab') }}", "True False"},
      {"{{ 'a</t>b</t>c'.split('</t>')[-1] }} {{ ' a  b '.split()[1] }}"
       " {{ 'a,b,c'.split(',', 1)[1] }}",
       "c b b,c"},
      {"{{ messages[0].get('x') }} {{ messages[0].get('x', 'y') }}", "None y"},
      {"{{ x is defined }} {{ messages is defined }} {{ x is not none }}",
       "False True True"},
      {"{{ 'a' is string }} {{ messages[0] is mapping }} {{ 3 is odd }}"
       " {{ 4 is divisibleby(2) }} {{ 4 is divisibleby 3 }}",
       "True True True True False"},
      {"{{ namespace is defined }} {{ strftime_now is defined }}",
       "True False"},
      {"{{ range(3) | join }}{{ range(1, 7, 3) | join(',') }}", "0121,4"},
  });
}

TEST(Jinja, StatementsAndScopes) {
  ExpectAll({
      {"{% for x in 'abc' %}{{ loop.index }}{{ x }}{{ loop.last }} "
       "{% endfor %}",
       "1aFalse 2bFalse 3cTrue "},
      {"{% for x in [] %}x{% else %}none{% endfor %}", "none"},
      {"{% for x in range(5) if x % 2 == 0 %}{{ loop.index0 }}{{ x }} "
       "{% endfor %}",
       "00 12 24 "},
      {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}",
       "a1b2"},
      // A variable set in a loop is gone behind it; a namespace's is not.
      {"{% set x = 1 %}{% set ns = namespace(y=1) %}{% for i in [7] %}"
       "{% set x = i %}{% set ns.y = i %}{{ x }}{% endfor %}{{ x }}{{ ns.y }}",
       "717"},
      {"{% if false %}a{% elif 1 %}b{% else %}c{% endif %}", "b"},
      {"{% if true %}{% set q = 'set' %}{% endif %}{{ q }}", "set"},
      {"{% for x in [1, 2, 3] %}{{ loop.previtem }}{{ loop.nextitem }};"
       "{% endfor %}",
       "2;13;2;"},
      // Branches never taken may hold what we cannot run.
      {"{% if tools is defined %}{{ tools | tojson(indent=4) }}"
       "{{ strftime_now('%d') }}{% endif %}ok",
       "ok"},
  });
}

TEST(Jinja, UnsupportedConstructsAreNamedWithTheirLine) {
  const auto expect = [](const std::string& source, const std::string& part) {
    EXPECT_THAT(Render(source), StatusIs(kPrecondition, part)) << source;
  };
  expect("\n{% macro m() %}{% endmacro %}",
         "line 2: the statement \"macro\" is not supported");
  expect("{% include 'x' %}", "\"include\"");
  expect("{% set x %}a{% endset %}", "without \"=\"");
  expect("{{ 1 | tojson }}", "the filter \"tojson\"");
  expect("{{ 1 is callable }}", "the test \"callable\"");
  expect("{{ 'a'.title() }}", "the string method \"title\"");
  expect("{{ strftime_now('%d') }}", "the function \"strftime_now\"");
  expect("{{ 1.5 }}", "number");
  expect("{{ [1] }}", "printing a list");
  expect("{{ x.y }}", "\"x\" is undefined");
  expect("{{ 'a' + 1 }}", "\"+\" between string and int");
  expect("{{ 1 % 0 }}", "division by zero");
  expect("{{ 9223372036854775807 }}", "number");
  expect("{{ 999999999999999999 * 999999999999999999 }}", "64 bits");
  expect("{{ 1", "no end");
  expect("{# a", "no end");
  expect("{{ 'a }}", "no end");
  expect("{% if 1 %}", "\"endif\" is missing");
  expect("{% endif %}", "\"endif\" is not supported");
  expect("{{ (1] }}", "expected");
  expect("{{ 1 ? 2 }}", "unexpected byte 0x3f");
  expect("{{ ) }}", "unbalanced");
  expect("{{ {messages[0].content: 1} | length }}", "key");
  EXPECT_THAT(Render("\xFF"), StatusIs(kPrecondition, "not UTF-8 at byte 0"));
}

TEST(Jinja, TheTemplateMayRefuseTheMessages) {
  EXPECT_THAT(Render("{{ raise_exception('Only ' + messages[0].role) }}"),
              StatusIs(absl::StatusCode::kInvalidArgument, "Only user"));
}

TEST(Jinja, HostileTemplatesEndWithAnError) {
  const auto repeat = [](const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  EXPECT_THAT(Render(repeat("{% if 1 %}", 20000)),
              StatusIs(kPrecondition, "nested deeper than 64"));
  EXPECT_THAT(
      Render("{{ " + repeat("(", 20000) + "1" + repeat(")", 20000) + " }}"),
      StatusIs(kPrecondition, "nesting deeper than 64"));
  EXPECT_THAT(Render("{{ " + repeat("[", 20000) + repeat("]", 20000) + " }}"),
              StatusIs(kPrecondition, "nesting deeper than 64"));
  EXPECT_THAT(Render("{{ 1" + repeat("+1", 20000) + " }}"),
              StatusIs(kPrecondition, "deeper than 256"));
  EXPECT_THAT(Render("{{ a" + repeat(".b", 20000) + " }}"),
              StatusIs(kPrecondition, "deeper than 256"));
  EXPECT_THAT(Render("{{ 1" + repeat("|d", 20000) + " }}"),
              StatusIs(kPrecondition, "deeper than 256"));
  EXPECT_THAT(Render("{{ 1" + repeat(" if 1 else 1", 20000) + " }}"),
              StatusIs(kPrecondition, "deeper than 64"));
  EXPECT_THAT(Render("{{ " + repeat("not ", 20001) + "1 }}"), IsOk());
  EXPECT_THAT(Render(std::string(300 << 10, 'x')),
              StatusIs(kPrecondition, "at most"));
  EXPECT_THAT(Render("{% for i in range(9999999) %}{% endfor %}"),
              StatusIs(kExhausted, "steps"));
  EXPECT_THAT(Render("{% set ns = namespace(s='x') %}"
                     "{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
                     "{% endfor %}"),
              StatusIs(kExhausted, "bytes of text"));
  EXPECT_THAT(Render("{% set ns = namespace(s=[]) %}"
                     "{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}"
                     "{% endfor %}"),
              StatusIs(kExhausted, "nested more than 16"));
  EXPECT_THAT(Render("{% set ns = namespace() %}{% set ns.a = ns %}"),
              StatusIs(kPrecondition, "cannot hold a namespace"));
  EXPECT_THAT(Render("{% set ns = namespace() %}{% set ns.a = [ns] %}"),
              StatusIs(kExhausted, "namespace"));
}

}  // namespace
}  // namespace kf::engine
