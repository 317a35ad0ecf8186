#include "server/pending_updates.h"

#include <algorithm>
#include <utility>

#include "server/convert_response.h"

namespace kf::server {
namespace {

bool IsLast(const engine::Update& update) {
  return update.finish_reason != engine::FinishReason::kNotFinished;
}

// What belongs to the request and not to the sequence that brought it.
void GivePromptsPart(engine::Update& from, engine::Update& to) {
  to.first = std::exchange(from.first, false);
  to.seed = from.seed;
  to.noise_seed = from.noise_seed;
  to.prompt_logprobs = std::exchange(from.prompt_logprobs, {});
  to.usage = std::exchange(from.usage, {});
}

}  // namespace

void PendingUpdates::Add(engine::Update update) {
  const bool last = IsLast(update);
  if (last) newest_ = update.usage;
  if (last && unfinished_ > 0) --unfinished_;
  const bool whole_usage = last && complete();
  if (!update.first && !whole_usage) update.usage = {};
  auto at = std::find_if(queue_.begin(), queue_.end(), [&](const auto& other) {
    return other.index == update.index;
  });
  if (at == queue_.end()) {
    queue_.push_back(std::move(update));
    return;
  }
  if (!last) return MergeUpdate(std::move(update), &*at);
  // Before the usage of the end is joined to it.
  MoveToBack(at);
  MergeUpdate(std::move(update), &queue_.back());
}

void PendingUpdates::Close() {
  if (std::exchange(unfinished_, 0) == 0) return;
  if (queue_.empty()) queue_.emplace_back();
  queue_.back().usage = newest_;
}

void PendingUpdates::MoveToBack(
    const std::deque<engine::Update>::iterator& at) {
  const auto next = std::next(at);
  if (next == queue_.end()) return;
  if (at->first) GivePromptsPart(*at, *next);
  std::rotate(at, next, queue_.end());
}

engine::Update PendingUpdates::Take() {
  engine::Update update = std::move(queue_.front());
  queue_.pop_front();
  return update;
}

}  // namespace kf::server
