// What a Generate call has not sent yet. Free of gRPC.
#pragma once

#include <cstdint>
#include <deque>

#include "engine/request.h"

namespace kf::server {

// Joins the updates of each sequence of one request, so that it holds no more
// than the answer itself, however long nobody reads.
//
// Take gives them out in the order in which their first delta came, but for a
// sequence's last, which goes behind all others: so the request's last update
// is taken last. The first one taken carries the prompt's part. Usage is the
// request's: of that first and of the last update alone, elsewhere its
// prompt_tokens are 0.
//
// Thread-compatible.
class PendingUpdates {
 public:
  // sequences >= 1.
  explicit PendingUpdates(uint32_t sequences = 1) : unfinished_(sequences) {}

  void Add(engine::Update update);
  // No more will come, though not all sequences have: what has been added last
  // is the request's last. Nothing new if complete().
  void Close();
  bool empty() const { return queue_.empty(); }
  // Of those that have not been taken; not empty.
  engine::Update Take();
  // Whether every sequence's last update has been added.
  bool complete() const { return unfinished_ == 0; }

 private:
  void MoveToBack(const std::deque<engine::Update>::iterator& at);

  std::deque<engine::Update> queue_;  // one per sequence at most
  uint32_t unfinished_;
  engine::Usage newest_;
};

}  // namespace kf::server
