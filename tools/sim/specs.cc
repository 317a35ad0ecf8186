#include "tools/sim/specs.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "tools/client_lib/text_input.h"
#include "tools/sim/catalog.h"

namespace kf::sim {
namespace {

using nlohmann::json;

// Reads the fields of one object and remembers which: what nobody has asked for
// is an error, since a misspelt field would change nothing without a word.
class FieldReader {
 public:
  FieldReader(std::string_view text, std::string what)
      : what_(std::move(what)),
        object_(json::parse(text, nullptr, /*allow_exceptions=*/false)) {
    if (!object_.is_object()) Fail("no JSON object");
  }

  std::string Name() {
    const json* value = Find("name", /*required=*/true);
    if (value == nullptr) return "";
    if (!value->is_string()) {
      Fail("name: want a string");
      return "";
    }
    return value->get<std::string>();
  }
  double Number(const char* field,
                double low,
                double high,
                const double* absent = nullptr) {
    const json* value = Find(field, absent == nullptr);
    if (value == nullptr) return absent == nullptr ? low : *absent;
    if (!value->is_number()) {
      Fail(absl::StrCat(field, ": want a number"));
      return low;
    }
    const double number = value->get<double>();
    if (number >= low && number <= high) return number;
    Fail(absl::StrCat(field, ": ", number, ", want ", low, " to ", high));
    return low;
  }
  int32_t Count(const char* field, double high, const double* absent) {
    const double number = Number(field, 1.0, high, absent);
    if (number != std::floor(number)) {
      Fail(absl::StrCat(field, ": ", number, ", want a whole number"));
    }
    return static_cast<int32_t>(number);
  }
  int32_t Count(const char* field, double high) {
    return Count(field, high, nullptr);
  }
  bool Flag(const char* field) {
    const json* value = Find(field, /*required=*/false);
    if (value == nullptr) return false;
    if (!value->is_boolean()) {
      Fail(absl::StrCat(field, ": want true or false"));
      return false;
    }
    return value->get<bool>();
  }
  void Fail(const std::string& fault) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(what_, ": ", fault));
    }
  }
  // The first fault, if there was any.
  absl::Status Finish() {
    if (!object_.is_object()) return status_;
    for (const auto& item : object_.items()) {
      if (!read_.contains(item.key())) {
        Fail(absl::StrCat("\"", item.key(), "\": unknown field"));
      }
    }
    return status_;
  }

 private:
  const json* Find(const char* field, bool required) {
    read_.insert(field);
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(field);
    if (found != object_.end()) return &*found;
    if (required) Fail(absl::StrCat(field, ": missing"));
    return nullptr;
  }

  const std::string what_;
  const json object_;
  std::set<std::string> read_;
  absl::Status status_;
};

template <typename Spec>
std::vector<std::string> NamesOf(const std::vector<Spec>& specs) {
  std::vector<std::string> names;
  names.reserve(specs.size());
  for (const Spec& spec : specs) names.push_back(spec.name);
  return names;
}

bool IsJsonPath(const std::string& name) { return name.ends_with(".json"); }

template <typename Spec>
absl::StatusOr<Spec> FindByName(const std::vector<Spec>& specs,
                                const char* what,
                                const std::string& name) {
  std::string known;
  for (const Spec& spec : specs) {
    if (spec.name == name) return spec;
    absl::StrAppend(&known, spec.name, ", ");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": \"", name, "\", want ", known, "or a file that ends in .json"));
}

}  // namespace

std::vector<std::string> DeviceNames() { return NamesOf(BuiltInDevices()); }
std::vector<std::string> ModelNames() { return NamesOf(BuiltInModels()); }

absl::StatusOr<DeviceSpec> ParseDevice(std::string_view text) {
  FieldReader reader(text, "device");
  constexpr double kMax = 1e18;
  DeviceSpec d;
  d.name = reader.Name();
  d.memory_bytes = reader.Number("memory_bytes", 1.0, kMax);
  d.memory_bytes_per_s = reader.Number("memory_bytes_per_s", 1.0, kMax);
  d.tensor_flops_16 = reader.Number("tensor_flops_16", 1.0, kMax);
  d.tensor_flops_8 =
      reader.Number("tensor_flops_8", 1.0, kMax, &d.tensor_flops_16);
  d.vector_flops = reader.Number("vector_flops", 1.0, kMax);
  d.efficiency = reader.Number("efficiency", 1e-6, 1.0);
  KF_RETURN_IF_ERROR(reader.Finish());
  return d;
}

absl::StatusOr<ModelSpec> ParseModel(std::string_view text) {
  FieldReader reader(text, "model");
  constexpr double kMaxWidth = 1 << 20;
  ModelSpec m;
  m.name = reader.Name();
  m.layers = reader.Count("layers", 4096);
  m.hidden = reader.Count("hidden", kMaxWidth);
  m.ffn = reader.Count("ffn", kMaxWidth);
  const double gated = 3.0;
  m.ffn_matrices = reader.Count("ffn_matrices", 3, &gated);
  m.query_heads = reader.Count("query_heads", 4096);
  m.kv_heads = reader.Count("kv_heads", 4096);
  m.head_dim = reader.Count("head_dim", 4096);
  m.vocabulary = reader.Count("vocabulary", 1 << 24);
  m.context_tokens = reader.Count("context_tokens", 1 << 24);
  m.tied_output = reader.Flag("tied_output");
  const double two = 2.0;
  m.weight_bytes = reader.Count("weight_bytes", 2, &two);
  m.cache_bytes = reader.Count("cache_bytes", 4, &two);
  if (m.cache_bytes == 3) reader.Fail("cache_bytes: 3, want 1, 2 or 4");
  if (m.query_heads % m.kv_heads != 0) {
    reader.Fail(absl::StrCat("query_heads: ", m.query_heads,
                             ", want a multiple of kv_heads, ", m.kv_heads));
  }
  KF_RETURN_IF_ERROR(reader.Finish());
  return m;
}

absl::StatusOr<DeviceSpec> FindDevice(const std::string& name) {
  if (!IsJsonPath(name)) return FindByName(BuiltInDevices(), "device", name);
  KF_ASSIGN_OR_RETURN(const std::string text, tools::ReadText(name));
  return ParseDevice(text);
}

absl::StatusOr<ModelSpec> FindModel(const std::string& name) {
  if (!IsJsonPath(name)) return FindByName(BuiltInModels(), "model", name);
  KF_ASSIGN_OR_RETURN(const std::string text, tools::ReadText(name));
  return ParseModel(text);
}

}  // namespace kf::sim
