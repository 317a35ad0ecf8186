#include "kernels/cpu/rope.h"

#include <cmath>

#include "kernels/core/status.h"

namespace kf::cpu {

void RopeTable::Prepare(const AttentionShape& shape, int32_t max_position) {
  KF_CHECK(shape.rotary_dim % 2 == 0 && shape.rotary_dim <= shape.head_dim);
  if (shape.rotary_dim != rotary_dim_ || shape.rope_base != base_) {
    rotary_dim_ = shape.rotary_dim;
    base_ = shape.rope_base;
    fine_.clear();
    coarse_.clear();
    // Untouched, it costs no memory.
    coarse_.reserve(static_cast<size_t>(kReserved / kFine) *
                    static_cast<size_t>(rotary_dim_));
    for (int32_t p = 0; p < kFine; ++p) AddRow(p, fine_);
  }
  if (rotary_dim_ == 0) return;
  const auto width = static_cast<size_t>(rotary_dim_);
  const auto rows = static_cast<size_t>(max_position / kFine) + 1;
  while (coarse_.size() < rows * width) {
    AddRow(static_cast<int32_t>(coarse_.size() / width) * kFine, coarse_);
  }
}

void RopeTable::AddRow(int32_t position, std::vector<double>& to) const {
  for (int32_t i = 0; i < rotary_dim_; i += 2) {
    const double angle =
        position * std::pow(base_, -static_cast<double>(i) / rotary_dim_);
    to.push_back(std::cos(angle));
    to.push_back(std::sin(angle));
  }
}

void RopeTable::Row(int32_t position, float* cos_sin) const {
  const double* a = coarse_.data() + int64_t{position / kFine} * rotary_dim_;
  const double* b = fine_.data() + int64_t{position % kFine} * rotary_dim_;
  for (int32_t i = 0; i < rotary_dim_; i += 2) {
    cos_sin[i] = static_cast<float>(a[i] * b[i] - a[i + 1] * b[i + 1]);
    cos_sin[i + 1] = static_cast<float>(a[i + 1] * b[i] + a[i] * b[i + 1]);
  }
}

}  // namespace kf::cpu
