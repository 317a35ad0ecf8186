#include "kernels/cuda/staging.h"

#include <algorithm>

namespace kf::cuda {
namespace {

// The first size of a slot: a decode step of a large batch fits.
constexpr size_t kFirstBytes = size_t{64} << 10;

}  // namespace

CopyFence::~CopyFence() {
  if (copied_ != nullptr) cudaEventDestroy(copied_);
}

absl::Status CopyFence::Wait() {
  if (copied_ == nullptr) {
    return ToStatus(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming),
                    "cudaEventCreateWithFlags");
  }
  if (!in_flight_) return absl::OkStatus();
  in_flight_ = false;
  return ToStatus(cudaEventSynchronize(copied_), "cudaEventSynchronize");
}

absl::Status CopyFence::Mark(cudaStream_t stream) {
  in_flight_ = true;
  return ToStatus(cudaEventRecord(copied_, stream), "cudaEventRecord");
}

absl::Status Staging::SetRoom(Slot& slot, size_t bytes) {
  const size_t size = std::max(kFirstBytes, PartBytes(bytes));
  // Launches that read the old memory are in the stream.
  KF_RETURN_IF_ERROR(device_.Wait());
  KF_ASSIGN_OR_RETURN(slot.host,
                      PinnedBuffer::Allocate(device_, size, "descriptors"));
  KF_ASSIGN_OR_RETURN(slot.device,
                      DeviceBuffer::Allocate(device_, size, "descriptors"));
  return absl::OkStatus();
}

absl::Status Staging::Reserve(size_t bytes) {
  for (Slot& slot : slots_) KF_RETURN_IF_ERROR(SetRoom(slot, bytes));
  return absl::OkStatus();
}

absl::Status Staging::Begin(size_t bytes) {
  current_ = (current_ + 1) % slots_.size();
  used_ = 0;
  Slot& slot = slots_[current_];
  KF_RETURN_IF_ERROR(slot.fence.Wait());
  if (slot.host == nullptr || slot.host->bytes() < bytes) {
    return SetRoom(slot, bytes * 3 / 2);
  }
  return absl::OkStatus();
}

std::byte* Staging::AddBytes(std::span<const std::byte> bytes) {
  Slot& slot = slots_[current_];
  KF_CHECK(used_ + PartBytes(bytes.size()) <= slot.host->bytes());
  if (!bytes.empty()) {
    std::memcpy(slot.host->data() + used_, bytes.data(), bytes.size());
  }
  std::byte* const there = slot.device->data() + used_;
  used_ += PartBytes(bytes.size());
  return there;
}

absl::Status Staging::Send() {
  Slot& slot = slots_[current_];
  if (used_ == 0) return absl::OkStatus();
  KF_RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(slot.device->data(), slot.host->data(), used_,
                               cudaMemcpyHostToDevice, device_.stream()),
               "cudaMemcpyAsync of descriptors"));
  return slot.fence.Mark(device_.stream());
}

absl::Status FixedStaging::Reserve(size_t bytes) {
  // Launches that read the old memory are in the stream.
  KF_RETURN_IF_ERROR(device_.Wait());
  KF_ASSIGN_OR_RETURN(
      buffer_,
      DeviceBuffer::Allocate(device_, std::max(kFirstBytes, PartBytes(bytes)),
                             "step descriptors"));
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> FixedStaging::Begin(size_t bytes) {
  current_ = (current_ + 1) % slots_.size();
  Slot& slot = slots_[current_];
  KF_RETURN_IF_ERROR(slot.fence.Wait());
  if (buffer_ == nullptr || buffer_->bytes() < bytes) {
    KF_RETURN_IF_ERROR(Reserve(bytes * 3 / 2));
  }
  if (slot.host == nullptr || slot.host->bytes() < buffer_->bytes()) {
    KF_ASSIGN_OR_RETURN(
        slot.host,
        PinnedBuffer::Allocate(device_, buffer_->bytes(), "step descriptors"));
  }
  return slot.host->data();
}

absl::Status FixedStaging::Send(size_t bytes) {
  Slot& slot = slots_[current_];
  KF_RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(buffer_->data(), slot.host->data(), bytes,
                               cudaMemcpyHostToDevice, device_.stream()),
               "cudaMemcpyAsync of a step's descriptors"));
  return slot.fence.Mark(device_.stream());
}

absl::StatusOr<unsigned char*> Workspace::GetWithRoom(size_t bytes) {
  const bool fits = buffer_ != nullptr && bytes <= buffer_->bytes();
  return Get(fits ? bytes : bytes + bytes / 2);
}

absl::StatusOr<unsigned char*> Workspace::Get(size_t bytes) {
  if (buffer_ == nullptr || buffer_->bytes() < bytes) {
    // Launches that use the old memory are in the stream.
    KF_RETURN_IF_ERROR(device_.Wait());
    buffer_.reset();  // before, so that both need not fit
    KF_ASSIGN_OR_RETURN(buffer_, DeviceBuffer::Allocate(
                                     device_, PartBytes(bytes), "workspace"));
  }
  return reinterpret_cast<unsigned char*>(buffer_->data());
}

}  // namespace kf::cuda
