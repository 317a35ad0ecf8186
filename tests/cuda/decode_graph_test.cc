// A decode step's attention as a captured graph: one capture for a bucket,
// replayed for batches of other rows, lengths, options and page lists, which
// are read from device memory, with the bits of plain launches. And the faults
// that a capture invites, planted: each shows as other bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cuda/gpu_api.h"
#include "tests/cuda/decode_rig.h"
#include "tests/cuda/device_array.h"

namespace kf::cuda {
namespace {

constexpr size_t kRows = 4;  // the bucket's
constexpr int32_t kChunks = 2;
constexpr size_t kWords = size_t{1} << 20;

enum class Plant {
  kNone,
  kGridOfTheFirstBatch,   // its chunks
  kRowsOfTheFirstBatch,   // its rows
  kItemsOfTheFirstBatch,  // memory that no later batch is copied to
};

// Runs batches by one graph, captured with the first.
class CapturedStep {
 public:
  CapturedStep(const AttentionShape& shape, Plant plant)
      : shape_(shape),
        plant_(plant),
        frequencies_(DecodeBatch::Frequencies(shape)),
        qkv_(kRows * static_cast<size_t>(shape.qkv_dim())),
        out_(kRows * static_cast<size_t>(shape.out_dim())),
        items_(kRows),
        first_items_(kRows),
        memory_(kWords) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              cudaSuccess);
  }
  ~CapturedStep() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    cudaStreamDestroy(stream_);
  }

  void Run(DecodeBatch& batch) {
    std::vector<DecodeItem> items = batch.Items();
    const auto rows = static_cast<int32_t>(items.size());
    DecodeItem idle;
    idle.idle = true;
    items.resize(kRows, idle);
    const DecodePlan plan = PlanDecode(batch.shape(), items);
    ASSERT_LE(static_cast<size_t>(plan.words), kWords);
    ASSERT_LE(plan.max_chunks, kChunks);
    batch.Upload();
    std::vector<float> qkv = batch.qkv();
    qkv.resize(qkv_.size(), 0.5F);
    qkv_.Upload(qkv);
    items_.Upload(items);
    if (exec_ == nullptr) {
      first_items_.Upload(items);
      Capture(batch.shape(), plan, rows);
    }
    EXPECT_EQ(cudaGraphLaunch(exec_, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(gpu::TakeError(), "");
    std::vector<float> out = out_.Download();
    const auto width = static_cast<size_t>(shape_.out_dim());
    const size_t live = static_cast<size_t>(rows) * width;
    if (plant_ == Plant::kNone) {
      EXPECT_TRUE(std::all_of(out.begin() + static_cast<ptrdiff_t>(live),
                              out.end(), [](float x) { return x == 0.0F; }));
    }
    out.resize(live);
    batch.Download(out);
  }

 private:
  void Capture(const DecodeShape& shape, const DecodePlan& plan, int32_t rows) {
    DecodeWork work;
    work.shape = shape;
    work.plan.max_chunks =
        plant_ == Plant::kGridOfTheFirstBatch ? plan.max_chunks : kChunks;
    work.layer = kRigLayer;
    work.rows = plant_ == Plant::kRowsOfTheFirstBatch
                    ? rows
                    : static_cast<int32_t>(kRows);
    work.frequencies = frequencies_.data();
    work.qkv = qkv_.data();
    work.out = out_.data();
    work.items = plant_ == Plant::kItemsOfTheFirstBatch ? first_items_.data()
                                                        : items_.data();
    work.memory = memory_.data();
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    DecodeAttention(stream_, work);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec_, graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
  }

  AttentionShape shape_;
  Plant plant_;
  gpu::DeviceArray<double> frequencies_;
  gpu::DeviceArray<float> qkv_;
  gpu::DeviceArray<float> out_;
  gpu::DeviceArray<DecodeItem> items_;
  gpu::DeviceArray<DecodeItem> first_items_;
  gpu::DeviceArray<uint32_t> memory_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

using Rows = std::vector<RowOptions>;

RowOptions Row(int32_t held, uint32_t seed) {
  return {.held = held,
          .budget = held,
          .recent = held / 3,
          .position = held + 40,
          .seed = seed};
}

// What follows the first is longer, of more rows, fewer, and of every option
// that a captured step may have.
std::vector<Rows> Batches() {
  std::vector<Rows> batches = {
      {Row(20, 1), Row(37, 2)},
      {Row(140, 3), Row(21, 4), Row(15, 5)},
      {Row(9, 6)},
      {Row(60, 7), Row(130, 8), Row(31, 9), Row(2, 10)}};
  batches[1][0].budget += 5;  // grows
  batches[1][1].scored = false;
  batches[1][2].noise = NoiseKind::kGaussian;
  batches[1][2].tau = 2.0F;
  batches[3][0].age = true;
  batches[3][1].add_scores = false;
  batches[3][2].resample_once = true;
  batches[3][3].recent = 2;
  return batches;
}

// Rows of all batches whose bits are not those of plain launches.
int DifferentRows(const AttentionShape& shape, Plant plant) {
  CapturedStep captured(shape, plant);
  int different = 0;
  // They stay: what is baked in may lead to the memory of an earlier one.
  std::vector<std::unique_ptr<DecodeBatch>> batches;
  for (const Rows& rows : Batches()) {
    DecodeBatch want(shape, rows);
    want.Run();
    batches.push_back(std::make_unique<DecodeBatch>(shape, rows));
    captured.Run(*batches.back());
    for (size_t i = 0; i < rows.size(); ++i) {
      if (batches.back()->StateOf(i) != want.StateOf(i)) ++different;
    }
  }
  return different;
}

AttentionShape Shape(DType dtype) { return {4, 2, 32, 32, 10000.0, dtype}; }

TEST(DecodeGraphTest, OneCaptureServesEveryBatchOfItsBucket) {
  EXPECT_EQ(DifferentRows(Shape(DType::kF32), Plant::kNone), 0);
  EXPECT_EQ(DifferentRows(Shape(DType::kBF16), Plant::kNone), 0);
}

#if defined(KF_CUDA_EMULATION)
// Not on a device, where memory that nothing has written may hold anything, and
// offsets of another plan lead anywhere.
TEST(DecodeGraphTest, WhatIsBakedInShows) {
  for (const Plant plant :
       {Plant::kGridOfTheFirstBatch, Plant::kRowsOfTheFirstBatch,
        Plant::kItemsOfTheFirstBatch}) {
    EXPECT_GT(DifferentRows(Shape(DType::kF32), plant), 0)
        << static_cast<int>(plant);
  }
}
#endif

}  // namespace
}  // namespace kf::cuda
