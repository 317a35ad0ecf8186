#include "tools/sim/cost_model.h"

#include <algorithm>

#include "kernels/backend.h"

namespace kf::sim {
namespace {

// Positions and scores of a slot of one kv head, 4 bytes each.
constexpr double kSlotBytes = 8.0;
// A scored slot's position and score are read and its score is written.
constexpr double kScoreTraffic = 12.0;

// f32 operations for a (query head, key) pair, counted from the formulas: the
// scale, the running maximum, an exponential (about 4) and the sum.
constexpr double kSoftmaxOps = 8.0;
// What a score adds: two mixes of the noise (11 each), a logarithm and a power
// (about 4 each), and the sums of the row and of the column.
constexpr double kScoreOps = 32.0;

// Keys that the rows [first, end) of a prompt see.
int64_t CausalPairs(int64_t first, int64_t end) {
  return end * (end + 1) / 2 - first * (first + 1) / 2;
}

}  // namespace

void PromptWork::Add(int64_t first_row,
                     int64_t prompt_rows,
                     int64_t first_scored) {
  const int64_t end = first_row + prompt_rows;
  rows += prompt_rows;
  pairs += CausalPairs(first_row, end);
  if (first_scored < end) {
    scored_pairs += CausalPairs(std::max(first_row, first_scored), end);
  }
  held_tokens += end;
}

CostModel::CostModel(const DeviceSpec& device, const ModelSpec& model)
    : device_(device), model_(model) {
  const double hidden = model.hidden;
  const double head_dim = model.head_dim;
  const double qkv = (model.query_heads + 2 * model.kv_heads) * head_dim;
  layer_parameters_ = hidden * (qkv + model.query_heads * head_dim) +
                      hidden * model.ffn * model.ffn_matrices;
  output_parameters_ = hidden * model.vocabulary;
  token_bytes_ = 2.0 * model.kv_heads * head_dim * model.cache_bytes;
}

double CostModel::weight_bytes() const {
  const double matrices = model_.tied_output ? 1.0 : 2.0;
  return model_.weight_bytes *
         (model_.layers * layer_parameters_ + matrices * output_parameters_);
}

double CostModel::page_bytes() const {
  return kPageTokens * (token_bytes_ + kSlotBytes * model_.kv_heads);
}

double CostModel::workspace_bytes() const {
  return token_bytes_ + 4.0 * model_.hidden;
}

Work CostModel::Decode(const DecodeWork& work) const {
  return Feed(work, output_parameters_);
}

Work CostModel::Replay(const DecodeWork& work) const {
  return Feed(work, /*output_parameters=*/0.0);
}

// A row of the embedding is read for each token: nothing beside a layer.
Work CostModel::Feed(const DecodeWork& work, double output_parameters) const {
  const double parameters =
      model_.layers * layer_parameters_ + output_parameters;
  const auto rows = static_cast<double>(work.rows);
  const auto read = static_cast<double>(work.read_tokens);
  const auto attended = static_cast<double>(work.attended_tokens);
  const auto scored = static_cast<double>(work.scored_tokens);
  const double query_width =
      static_cast<double>(model_.query_heads) * model_.head_dim;
  return {
      .bytes = model_.weight_bytes * parameters + token_bytes_ * read +
               token_bytes_ * model_.layers * rows +
               kScoreTraffic * model_.kv_heads * scored,
      .tensor_flops = 2.0 * parameters * rows + 4.0 * query_width * attended,
      .vector_flops =
          model_.query_heads * (kSoftmaxOps * attended + kScoreOps * scored)};
}

Work CostModel::Prompt(const PromptWork& work) const {
  const auto rows = static_cast<double>(work.rows);
  const auto pairs = static_cast<double>(work.pairs);
  const auto logit_rows = static_cast<double>(work.logit_rows);
  const double output = logit_rows > 0.0 ? output_parameters_ : 0.0;
  const double query_width =
      static_cast<double>(model_.query_heads) * model_.head_dim;
  return {.bytes = model_.weight_bytes * (layer_parameters_ + output) +
                   token_bytes_ * static_cast<double>(work.held_tokens) +
                   token_bytes_ * rows,
          .tensor_flops = 2.0 * layer_parameters_ * rows +
                          4.0 * query_width * pairs + 2.0 * output * logit_rows,
          .vector_flops = model_.query_heads *
                          (kSoftmaxOps * pairs +
                           kScoreOps * static_cast<double>(work.scored_pairs))};
}

double CostModel::Seconds(const Work& work) const {
  const double tensor_rate = model_.weight_bytes == 1 ? device_.tensor_flops_8
                                                      : device_.tensor_flops_16;
  const double compute = work.tensor_flops / tensor_rate +
                         work.vector_flops / device_.vector_flops;
  const double memory = work.bytes / device_.memory_bytes_per_s;
  return std::max(memory, compute) / device_.efficiency;
}

DecodeWork DecodeWorkOf(const engine::RequestSizes& sizes,
                        int32_t layers,
                        int32_t held) {
  const engine::CacheRules& rules = sizes.rules;
  int64_t read = int64_t{held} * layers;
  if (rules.read_pages > 0) {
    const int64_t chosen = int64_t{rules.read_pages} * kPageTokens;
    const int64_t some = std::min<int64_t>(held, chosen) + held / kPageTokens;
    const int64_t whole_layers = std::min(rules.full_layers, layers);
    read = whole_layers * held + (layers - whole_layers) * some;
  }
  return {.rows = 1,
          .read_tokens = read,
          .attended_tokens = read,
          .scored_tokens = rules.scored ? read : 0};
}

}  // namespace kf::sim
