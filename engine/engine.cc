#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "engine/cache/page_pool.h"
#include "engine/core.h"
#include "engine/model/decoder.h"
#include "engine/model/dummy_model.h"
#include "engine/model/weights.h"
#include "engine/rate_meter.h"
#include "engine/request_validation.h"
#include "engine/scheduler.h"
#include "engine/sequence_group.h"
#include "kernels/core/mutex.h"
#include "kernels/core/status.h"
#include "kernels/core/thread_name.h"

namespace kf::engine {

struct Engine::Impl {
  Impl(const EngineOptions& engine_options, const Clock& engine_clock)
      : options(engine_options),
        clock(engine_clock),
        bound(engine_options.max_queue_requests,
              engine_options.max_queue_tokens) {}

  const GgufFile& file() const {
    return dummy != nullptr ? dummy->file() : *opened_file;
  }
  absl::Status OpenModel();
  absl::Status Load(std::unique_ptr<Backend> injected);
  absl::Status LoadMemory();
  absl::Status WarmUp();
  void Run();
  absl::Status CheckFits(const RequestSizes& sizes) const;
  absl::Status Enqueue(std::unique_ptr<SequenceGroup> group);
  void TakeReport(const CoreReport& report);

  EngineOptions options;
  const Clock& clock;
  EngineObserver null_observer;
  EngineObserver* observer = &null_observer;

  // In order of need: each may use what stands above it.
  std::unique_ptr<DummyModel> dummy;      // of random weights; else null
  std::unique_ptr<GgufFile> opened_file;  // null: dummy's
  ModelConfig config;
  LayerProfiles profiles;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Decoder> decoder;
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<EngineCore> core;  // the engine thread's, once it runs
  RequestLimits limits;

  mutable Mutex mu;
  CondVar wake;  // for the engine thread
  CondVar idle;  // for WaitIdle
  std::vector<std::unique_ptr<SequenceGroup>> incoming KF_GUARDED_BY(mu);
  std::vector<RequestId> cancels KF_GUARDED_BY(mu);
  RequestId last_id KF_GUARDED_BY(mu) = 0;
  QueueBound bound KF_GUARDED_BY(mu);
  CoreReport report KF_GUARDED_BY(mu);
  RateMeter rate KF_GUARDED_BY(mu);
  bool busy KF_GUARDED_BY(mu) = false;  // the core has requests
  bool draining KF_GUARDED_BY(mu) = false;
  bool stopping KF_GUARDED_BY(mu) = false;
  absl::Status stop_status KF_GUARDED_BY(mu);

  Mutex join_mu;  // held while joining: Stop may be called from many threads
  std::thread thread KF_GUARDED_BY(join_mu);
};

absl::Status Engine::Impl::OpenModel() {
  if (options.load_format == LoadFormat::kDummy) {
    KF_ASSIGN_OR_RETURN(dummy, DummyModel::Open(options.model_config));
    return absl::OkStatus();
  }
  KF_ASSIGN_OR_RETURN(opened_file, GgufFile::Open(options.model_path));
  return absl::OkStatus();
}

absl::Status Engine::Impl::Load(std::unique_ptr<Backend> injected) {
  KF_RETURN_IF_ERROR(ValidateOptions(options));
  KF_RETURN_IF_ERROR(OpenModel());
  KF_ASSIGN_OR_RETURN(config, ReadModelConfig(file()));
  const bool beside_the_model = options.layer_profiles_path.empty();
  if (beside_the_model) {
    options.layer_profiles_path = LayerProfilesPath(options.model_path);
  }
  KF_ASSIGN_OR_RETURN(
      profiles, LoadLayerProfiles(options.layer_profiles_path, config.layers,
                                  beside_the_model));
  KF_ASSIGN_OR_RETURN(
      tokenizer,
      Tokenizer::Load(dummy != nullptr ? dummy->tokenizer_file() : file()));
  if (tokenizer->size() != config.vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokenizer.ggml.tokens: ", tokenizer->size(), " tokens, but ",
        config.vocabulary, " rows in token_embd.weight"));
  }
  backend = std::move(injected);
  if (backend == nullptr) {
    KF_ASSIGN_OR_RETURN(backend, CreateBackend(options.backend));
  }
  if (!backend->SupportsCache(options.cache_dtype)) {
    return absl::UnimplementedError(absl::StrCat(
        "cache_dtype: ", ToAbsl(CacheTypeName(options.cache_dtype)),
        " is not served by the ", ToAbsl(backend->name()),
        " backend, want bf16 or f32, or device cpu"));
  }
  limits = {.vocabulary = config.vocabulary,
            .context_tokens = config.context_tokens,
            .layers = config.layers,
            .default_max_new_tokens = options.default_max_new_tokens,
            .max_top_logprobs = options.max_top_logprobs};
  if (!options.weight_format.has_value()) {
    options.weight_format = AutoWeightFormat(file());
  }
  KF_RETURN_IF_ERROR(LoadMemory());
  return WarmUp();
}

namespace {

// Keys whose attention costs a row as much as a layer's products do. A product
// of attention takes about twice as long as one of these
// (docs/performance.md).
int32_t ContextOfARow(const ModelConfig& c) {
  const int64_t queries = int64_t{c.query_heads} * c.head_dim;
  const int64_t products =
      c.hidden *
      (2 * queries + 2 * int64_t{c.kv_heads} * c.head_dim + 3 * int64_t{c.ffn});
  const int64_t of_a_key = 2 * queries;
  return static_cast<int32_t>(
      std::clamp<int64_t>(products / (2 * of_a_key), 1, kMaxContext));
}

}  // namespace

absl::Status Engine::Impl::LoadMemory() {
  if (options.prefill_workspace_tokens == 0) {
    options.prefill_workspace_tokens = config.context_tokens;
  }
  // Longer prompts than the context are refused anyway, and a batch of them is
  // all that can be in prefill.
  const int64_t most_useful =
      int64_t{config.context_tokens} * options.max_batch;
  options.prefill_workspace_tokens = static_cast<int32_t>(
      std::min<int64_t>(options.prefill_workspace_tokens, most_useful));
  const int32_t workspace = options.prefill_workspace_tokens;
  KF_ASSIGN_OR_RETURN(
      decoder, Decoder::Create(file(), config,
                               {.weight_format = *options.weight_format,
                                .cache_dtype = options.cache_dtype,
                                .max_batch = options.max_batch,
                                .workspace_tokens = workspace,
                                .max_workspace_prompts =
                                    std::min(options.max_batch, workspace),
                                .clock = &clock},
                               *backend));
  // After the weights and workspaces: the pool takes its share of what they
  // leave. Only the free slots are still to come.
  const size_t page_bytes = backend->PageBytes(decoder->shape());
  const uint64_t slots = CacheStore::Bytes(config, options.max_batch);
  const uint64_t room =
      RoomForPool(backend->OwnMemory(), options.gpu_memory_share);
  KF_ASSIGN_OR_RETURN(
      const int32_t pages,
      PoolPages({.requested_bytes = options.kv_pool_bytes,
                 .chosen_bytes = room > slots ? room - slots : 0,
                 .page_bytes = page_bytes,
                 .layers = config.layers,
                 .context_tokens = config.context_tokens,
                 .max_batch = options.max_batch}));
  options.kv_pool_bytes = static_cast<uint64_t>(pages) * page_bytes;
  KF_ASSIGN_OR_RETURN(
      pool, PagePool::Create(*backend, page_bytes, pages, "kv_pool_bytes"));
  KF_ASSIGN_OR_RETURN(
      core,
      EngineCore::Create(
          {.config = config,
           .tokenizer = *tokenizer,
           .clock = clock,
           .backend = *backend,
           .decoder = *decoder,
           .pool = *pool,
           .limits = {.pool_pages = pages,
                      .workspace_tokens = workspace,
                      .max_batch = options.max_batch,
                      .layers = config.layers,
                      .slice_tokens = options.prefill_slice_tokens,
                      .call_rows = kPromptCallRows,
                      .context_of_a_row = ContextOfARow(config),
                      .max_skips = options.max_skips},
           .prefill_slice_time =
               std::chrono::milliseconds(options.prefill_slice_ms),
           .report = [this](const CoreReport& news) { TakeReport(news); }}));
  return absl::OkStatus();
}

namespace {

class WarmUpSink final : public TokenSink {
 public:
  void OnUpdate(Update update) override { reason = update.finish_reason; }
  void OnEnd(const absl::Status& end) override { status = end; }
  FinishReason reason = FinishReason::kNotFinished;
  absl::Status status;
};

}  // namespace

// A short request through the real path, before the thread starts: faults in
// the weights and sets up every lazy part. A model whose logits are not numbers
// is refused here.
absl::Status Engine::Impl::WarmUp() {
  Request request;
  request.prompt = {0};
  request.stopping.max_new_tokens = 2;
  request.stopping.ignore_eos = true;
  request.sampling.seed = 0;
  const auto sizes = ValidateRequest(request, limits);
  // A context of a token or two has no room for it.
  if (!sizes.ok()) return absl::OkStatus();
  const auto sink = std::make_shared<WarmUpSink>();
  KF_RETURN_IF_ERROR(CheckFitsPool(*sizes, config.layers, pool->total()));
  KF_RETURN_IF_ERROR(Enqueue(std::make_unique<SequenceGroup>(
      0, std::move(request), *sizes, sink, *tokenizer, clock.Now())));
  {
    const MutexLock lock(mu);
    core->Add(std::move(incoming.back()));
    incoming.clear();
  }
  while (!core->idle()) core->Step();
  {
    const MutexLock lock(mu);
    rate = RateMeter();
  }
  KF_RETURN_IF_ERROR(sink->status);
  if (sink->reason == FinishReason::kError) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.model_path, ": the model's logits are not finite numbers"));
  }
  return absl::OkStatus();
}

absl::Status Engine::Impl::CheckFits(const RequestSizes& sizes) const {
  KF_RETURN_IF_ERROR(CheckFitsBatch(sizes, options.max_batch));
  KF_RETURN_IF_ERROR(CheckFitsPool(sizes, config.layers, pool->total()));
  return CheckFitsWorkspace(sizes, options.prefill_workspace_tokens);
}

absl::Status Engine::Impl::Enqueue(std::unique_ptr<SequenceGroup> group) {
  const MutexLock lock(mu);
  if (draining || stopping) {
    return absl::UnavailableError("the server is draining");
  }
  KF_RETURN_IF_ERROR(bound.Add(group->sizes.prompt_tokens));
  incoming.push_back(std::move(group));
  wake.NotifyOne();
  return absl::OkStatus();
}

// On the engine thread, before clients hear of what is reported.
void Engine::Impl::TakeReport(const CoreReport& news) {
  const MutexLock lock(mu);
  report = news;
  bound.Remove(news.left_queue, news.left_queue_tokens);
  if (news.generated > 0) rate.Add(clock.Now(), news.generated);
}

void Engine::Impl::Run() {
  std::vector<std::unique_ptr<SequenceGroup>> arrived;
  std::vector<RequestId> cancelled;
  for (;;) {
    bool stop = false;
    absl::Status status;
    {
      const MutexLock lock(mu);
      busy = !core->idle();
      if (!busy && incoming.empty()) idle.NotifyAll();
      while (incoming.empty() && !stopping && !busy) {
        cancels.clear();  // of requests that are no more
        wake.Wait(mu);
      }
      arrived.swap(incoming);
      cancelled.swap(cancels);
      busy = busy || !arrived.empty();
      stop = stopping;
      status = stop_status;
    }
    for (auto& group : arrived) core->Add(std::move(group));
    arrived.clear();
    for (const RequestId id : cancelled) core->Cancel(id);
    cancelled.clear();
    if (stop) break;
    core->Step();
  }
  absl::Status status;
  {
    const MutexLock lock(mu);
    status = stop_status;
  }
  core->EndAll(status);
  const MutexLock lock(mu);
  busy = false;
  idle.NotifyAll();
}

Engine::Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(
    const EngineOptions& options,
    const Clock& clock,
    EngineObserver* observer,
    std::unique_ptr<Backend> backend) {
  std::unique_ptr<Engine> engine(new Engine);
  engine->impl_ = std::make_unique<Impl>(options, clock);
  Impl& impl = *engine->impl_;
  KF_RETURN_IF_ERROR(impl.Load(std::move(backend)));
  if (observer != nullptr) impl.observer = observer;
  impl.core->SetObserver(impl.observer);
  const MutexLock lock(impl.join_mu);
  impl.thread = std::thread([&impl] {
    NameThread("kf-engine");
    impl.backend->AdoptThread();
    impl.Run();
  });
  return engine;
}

Engine::~Engine() { Stop(absl::CancelledError("the engine has stopped")); }

absl::StatusOr<RequestId> Engine::Submit(Request request,
                                         std::shared_ptr<TokenSink> sink) {
  Impl& impl = *impl_;
  impl.observer->OnReceived();
  const auto reject = [&](RejectReason reason, absl::Status status) {
    impl.observer->OnRejected(reason);
    return status;
  };
  const auto sizes = ValidateRequest(request, impl.limits);
  if (!sizes.ok()) return reject(RejectReason::kInvalid, sizes.status());
  if (auto fits = impl.CheckFits(*sizes); !fits.ok()) {
    return reject(RejectReason::kNeverFits, std::move(fits));
  }
  RequestId id = 0;
  {
    const MutexLock lock(impl.mu);
    id = ++impl.last_id;
  }
  auto status = impl.Enqueue(std::make_unique<SequenceGroup>(
      id, std::move(request), *sizes, std::move(sink), *impl.tokenizer,
      impl.clock.Now()));
  if (absl::IsUnavailable(status)) {
    return reject(RejectReason::kDraining, std::move(status));
  }
  if (!status.ok()) return reject(RejectReason::kQueueFull, std::move(status));
  return id;
}

void Engine::Cancel(RequestId id) {
  const MutexLock lock(impl_->mu);
  impl_->cancels.push_back(id);
  impl_->wake.NotifyOne();
}

void Engine::Drain() {
  const MutexLock lock(impl_->mu);
  impl_->draining = true;
}

bool Engine::WaitIdle(Duration timeout) {
  // Real time, whatever the clock: the caller waits in it.
  const auto end = std::chrono::steady_clock::now() + timeout;
  const MutexLock lock(impl_->mu);
  while (impl_->busy || !impl_->incoming.empty()) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) return false;
    impl_->idle.WaitFor(impl_->mu, left);
  }
  return true;
}

void Engine::Stop(const absl::Status& status) {
  {
    const MutexLock lock(impl_->mu);
    if (!impl_->stopping) {
      impl_->stopping = true;
      impl_->stop_status = status;
    }
    impl_->wake.NotifyAll();
  }
  const MutexLock lock(impl_->join_mu);
  if (impl_->thread.joinable()) impl_->thread.join();
}

EngineStats Engine::Stats() const {
  const MutexLock lock(impl_->mu);
  const CoreReport report = impl_->report;
  return {
      .running = report.running,
      .waiting = impl_->bound.requests() + report.preempted,
      .waiting_prompt_tokens = impl_->bound.tokens() + report.preempted_tokens,
      .pages_total = impl_->pool->total(),
      .pages_free = report.pages_free,
      .physical_cache_tokens = report.physical_cache_tokens,
      .logical_cache_tokens = report.logical_cache_tokens,
      .generation_tokens_per_second = impl_->rate.PerSecond(impl_->clock.Now()),
      .draining = impl_->draining || impl_->stopping};
}

const ModelConfig& Engine::config() const { return impl_->config; }
const Tokenizer& Engine::tokenizer() const { return *impl_->tokenizer; }
const EngineOptions& Engine::options() const { return impl_->options; }
const LayerProfiles& Engine::layer_profiles() const { return impl_->profiles; }
std::string Engine::backend_description() const {
  return impl_->backend->description();
}
std::string Engine::backend_notice() const { return impl_->backend->notice(); }

uint64_t Engine::kv_bytes_per_token() const {
  const AttentionShape& shape = impl_->decoder->shape();
  // A slot's share of its page, with what pads its rows, but for the position
  // and the score that each head has there.
  const uint64_t slot = impl_->backend->PageBytes(shape) / kPageTokens;
  const uint64_t beside =
      static_cast<uint64_t>(shape.kv_heads) * (sizeof(int32_t) + sizeof(float));
  return (slot - beside) * static_cast<uint64_t>(impl_->config.layers);
}

}  // namespace kf::engine
