#include "kernels/cuda/products.h"

#include <algorithm>

#include "kernels/core/status.h"
#include "kernels/cuda/product.h"

namespace kf::cuda {
namespace {

// The value of cublaslt_path that asks for our own products.
constexpr std::string_view kNone = "none";

// The library that `path` asks for; empty: the first of `places`.
absl::StatusOr<CublasLtSearch> Search(const std::string& path,
                                      const std::vector<std::string>& places) {
  CublasLtSearch result;
  if (path == kNone) return result;
  if (path.empty()) return FindCublasLt(places);
  auto library = OpenCublasLt(path);
  if (!library.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cublaslt_path: \"", path, "\": ", library.status().message()));
  }
  result.library = *std::move(library);
  return result;
}

absl::Status CopyRows(const Device& device,
                      const float* from,
                      int64_t values,
                      float* to) {
  return ToStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(values) * sizeof(float),
                      cudaMemcpyDeviceToDevice, device.stream()),
      "cudaMemcpyAsync");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Products>> Products::Create(
    const Device& device,
    Workspace& workspace,
    const std::string& cublaslt_path,
    const std::vector<std::string>& places) {
  std::unique_ptr<Products> products(new Products(device, workspace));
  KF_ASSIGN_OR_RETURN(CublasLtSearch search, Search(cublaslt_path, places));
  products->tried_ = std::move(search.tried);
  if (!search.library.has_value()) return products;
  KF_RETURN_IF_ERROR(device.Use());
  const lt::Api& api = search.library->api;
  const absl::Status status =
      LtStatus(api, api.cublasLtCreate(&products->handle_), "cublasLtCreate");
  if (status.ok()) {
    products->library_ = std::move(search.library);
  } else if (!cublaslt_path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cublaslt_path: \"", cublaslt_path, "\": ", status.message()));
  } else {
    products->tried_ =
        absl::StrCat(search.library->file, ": ", status.message());
  }
  return products;
}

Products::~Products() {
  shapes_.clear();  // their descriptors go before the handle
  if (handle_ != nullptr) library_->api.cublasLtDestroy(handle_);
}

absl::Status Products::Prepare(const DeviceLinear& w) {
  if (!library_.has_value()) return absl::OkStatus();
  if (w.format() == WeightFormat::kBF16) KF_RETURN_IF_ERROR(Ask(w));
  (Serves(w) ? any_served_ : any_own_) = true;
  if (w.format() != WeightFormat::kBF16) any_not_bf16_ = true;
  return absl::OkStatus();
}

absl::Status Products::Ask(const DeviceLinear& w) {
  const std::pair<int64_t, int64_t> key(w.in(), w.out());
  if (shapes_.contains(key)) return absl::OkStatus();
  Shape shape;
  KF_ASSIGN_OR_RETURN(
      shape.matmul, LtMatmul::Create(library_->api, handle_, w.in(), w.out()));
  KF_ASSIGN_OR_RETURN(shape.choice,
                      ChooseAlgorithms(device_, *shape.matmul, w.bf16()));
  shapes_.emplace(key, std::move(shape));
  return absl::OkStatus();
}

const Products::Shape* Products::ShapeOf(const DeviceLinear& w) const {
  if (w.format() != WeightFormat::kBF16) return nullptr;
  const auto found = shapes_.find({w.in(), w.out()});
  if (found == shapes_.end() || !found->second.choice.has_value()) {
    return nullptr;
  }
  return &found->second;
}

namespace {

// Rows that the library is given: whole multiples where it is padded.
int64_t RoomRows(const LtChoice& choice, int64_t rows) {
  if (!choice.padded) return rows;
  return (rows + kLtFewRows - 1) / kLtFewRows * kLtFewRows;
}

size_t RoundedBytes(const LtChoice& choice, int64_t in, int64_t rows) {
  return PartBytes(static_cast<size_t>(RoomRows(choice, rows) * in) *
                   sizeof(Bf16));
}

}  // namespace

size_t Products::WorkspaceBytes(const DeviceLinear& w, int64_t rows) const {
  const LtChoice& choice = *ShapeOf(w)->choice;
  const size_t padded_y =
      choice.padded ? static_cast<size_t>(kLtFewRows * w.out()) * sizeof(float)
                    : 0;
  return RoundedBytes(choice, w.in(), rows) + padded_y;
}

absl::Status Products::Multiply(const DeviceLinear& w,
                                const float* x,
                                int64_t rows,
                                const float* residual,
                                float* out) {
  const Shape* const shape = ShapeOf(w);
  KF_CHECK(shape != nullptr);
  const int64_t room = RoomRows(*shape->choice, rows);
  KF_ASSIGN_OR_RETURN(unsigned char* memory,
                      workspace_.Get(WorkspaceBytes(w, rows)));
  auto* const rounded = reinterpret_cast<Bf16*>(memory);
  RoundToBf16(device_.stream(), x, rows * w.in(), rounded);
  if (room > rows) {
    KF_RETURN_IF_ERROR(
        ToStatus(cudaMemsetAsync(
                     rounded + rows * w.in(), 0,
                     static_cast<size_t>((room - rows) * w.in()) * sizeof(Bf16),
                     device_.stream()),
                 "cudaMemsetAsync"));
  }
  return MultiplyByLt(*shape,
                      {.x = rounded,
                       .w = w.bf16(),
                       .residual = residual,
                       .y = out,
                       .rows = rows,
                       .in = w.in(),
                       .out = w.out()},
                      reinterpret_cast<float*>(
                          memory + RoundedBytes(*shape->choice, w.in(), rows)));
}

absl::Status Products::MultiplyByLt(const Shape& shape,
                                    ProductArgs<Bf16> args,
                                    float* padded_y) {
  const LtChoice& choice = *shape.choice;
  const int64_t piece = choice.padded ? kLtFewRows : kLtMostRows;
  for (int64_t left = args.rows; left > 0; left -= piece) {
    args.rows = std::min(left, piece);
    if (choice.padded && args.rows < piece) {
      return MultiplyPadded(shape, args, padded_y);
    }
    KF_RETURN_IF_ERROR(shape.matmul->Run(
        device_.stream(), args.rows <= kLtFewRows ? choice.few : choice.many,
        args));
    args.x += args.rows * args.in;
    args.y += args.rows * args.out;
    if (args.residual != nullptr) args.residual += args.rows * args.out;
  }
  return absl::OkStatus();
}

// x has zeros behind the rows; y needs room for what comes of them.
absl::Status Products::MultiplyPadded(const Shape& shape,
                                      const ProductArgs<Bf16>& args,
                                      float* padded_y) {
  ProductArgs<Bf16> padded = args;
  padded.rows = kLtFewRows;
  padded.y = padded_y;
  if (args.residual != nullptr) {
    KF_RETURN_IF_ERROR(
        CopyRows(device_, args.residual, args.rows * args.out, padded_y));
    padded.residual = padded_y;
  }
  KF_RETURN_IF_ERROR(
      shape.matmul->Run(device_.stream(), shape.choice->few, padded));
  return CopyRows(device_, padded_y, args.rows * args.out, args.y);
}

std::string Products::description() const {
  if (!library_.has_value() || (any_own_ && !any_served_)) {
    return "own products";
  }
  return absl::StrCat("cuBLASLt ", library_->version,
                      any_own_ ? " and own products" : "");
}

std::string Products::notice() const {
  if (!library_.has_value()) {
    return tried_.empty()
               ? ""
               : absl::StrCat("no cuBLASLt, own products serve; tried ",
                              tried_);
  }
  std::string text =
      absl::StrCat("cuBLASLt ", library_->version, " from ", library_->file);
  for (const auto& [size, shape] : shapes_) {
    absl::StrAppend(&text, "; ", size.first, " to ", size.second, ": ");
    if (!shape.choice.has_value()) {
      text += "own product (no algorithm keeps a row's bits)";
      continue;
    }
    const LtMatmul& matmul = *shape.matmul;
    absl::StrAppend(&text, "algorithm ", matmul.NameOf(shape.choice->few));
    if (shape.choice->padded) {
      absl::StrAppend(&text, ", padded to ", kLtFewRows, " rows");
    } else {
      absl::StrAppend(&text, ", above ", kLtFewRows, " rows ",
                      matmul.NameOf(shape.choice->many));
    }
  }
  if (any_not_bf16_) {
    text += "; weights that are not bf16: own products";
  }
  return text;
}

}  // namespace kf::cuda
