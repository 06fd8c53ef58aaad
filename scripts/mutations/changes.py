"""The planted changes. Each changes what a user sees: an order, a score, a prompt, who waits, or what is learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Change:
    """A change of a file, and the tests; one of them must fail.

    Attributes:
        path: the file.
        old: occurs once in the file.
        tests: the test files; together they take seconds.
    """

    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path}: {' '.join(self.old.split())} → {' '.join(self.new.split()) or 'nothing'}"


def _of(path: str, *changes: tuple[str, str], tests: str = "") -> tuple[Change, ...]:
    """Changes of a file. `tests` are the names of test files beside its own, which need not exist then."""
    product = Path(path.removeprefix("eval/rerank_").removeprefix("training/rerank_"))
    own = Path("tests") / product.with_name(f"test_{product.name}")
    files = ([own] if own.exists() else []) + [Path("tests") / name for name in tests.split()]
    return tuple(Change(path, old, new, tuple(map(str, files))) for old, new in changes)


CHANGES: tuple[Change, ...] = (
    *_of(
        "rerank/engine/strategies.py",
        ("end -= stride", "end -= size"),
        ("yield 0, min(size, n)", "yield max(0, end - size), end"),
        ("is_final=start == 0", "is_final=True"),
        ("half = self.window_size // 2", "half = self.window_size // 3"),
        ("tail = [pivot, *below, *tail]", "tail = [*below, pivot, *tail]"),
        ("        if windows <= 1:\n", "        if windows <= 9:\n"),
        ("[*reordered(window, ranking), *others]", "[*others, *reordered(window, ranking)]"),
        tests="rerank/engine/test_scores.py",
    ),
    *_of(
        "rerank/engine/scores.py",
        ("scores += weight * z_scores", "scores -= weight * z_scores"),
        ("score <= following", "score < following"),
        ("[-score for score in scores] if", "scores if"),
        (" or not all(map(math.isfinite, scores)) or len({", " or len({"),
        (" or len({*scores}) < 2", ""),
        ("np.nextafter(np.float32(result[-1]), np.float32(-np.inf))", "result[-1]"),
        ("1 - 4 * discordant", "1 - 2 * discordant"),
    ),
    *_of(
        "rerank/engine/queue.py",
        ("_LOOK_AHEAD = 16", "_LOOK_AHEAD = 1"),
        ("_AGE_FACTOR = 0.05", "_AGE_FACTOR = 0.0"),
        ("caller.tag = max(least, (least + caller.tag) / 2)", "caller.tag = 0.0"),
        ("tokens + queue[0].tokens <= self.max_batch_tokens", "tokens <= self.max_batch_tokens"),
        ("        if priority > queued_priority:", "        if False:"),
        ("caller.tag + self._remaining(caller.heap[0][2])", "caller.tag"),
    ),
    *_of(
        "rerank/engine/scheduler.py",
        ("max_batch_tokens, tokens) // 2)", "max_batch_tokens, tokens))"),
        ("if not work.future.done():  # it is done if its request was cancelled", "if True:"),
        ("self._queue.discard(request)", "pass"),
        ("batch[0].fail(self._failure(batch[0], error))", "batch[0].fail(error)"),
        ("keep = math.exp(-seconds / _AVERAGED_S)", "keep = 1.0"),
        (
            "_LIMIT_S = 60.0\n#: That time if the expected time of the batch is not known.\n_UNKNOWN_LIMIT_S = 600.0",
            "_LIMIT_S = 1e9\n_UNKNOWN_LIMIT_S = 1e9",
        ),
        tests="rerank/engine/test_engine_failures.py",
    ),
    *_of(
        "rerank/engine/request.py",
        ("if set(positions) <= set(self.windows[-1].positions):", "if False:"),
        ("self.order = [position for position in self.order if position not in {*blank}]", "pass"),
        ("key=lambda done: done.queue_ms + done.model_ms", "key=lambda done: done.queue_ms"),
        ("self.repairs += ranking.repairs", "self.repairs = ranking.repairs"),
        ("and not ranking.is_unanswered", ""),
        ("max(0.0, self.windows - self.encoded)", "self.windows"),
        tests="rerank/engine/test_engine.py rerank/engine/test_answer.py rerank/engine/test_scores.py "
        "rerank/engine/test_slices.py rerank/engine/test_engine_failures.py",
    ),
    *_of(
        "rerank/engine/model.py",
        ("if needed > free_tokens or not found:", "if not found:"),
        tests="rerank/engine/test_slices.py",
    ),
    *_of(
        "rerank/rankers/fused_scores.py",
        ("return z_scores(scores) + weight * z_scores(scores[indices].mean(axis=1))", "return scores"),
        ("FULL_AGREEMENT = 0.3", "FULL_AGREEMENT = 1e-9"),
        ("FULL_KNOWLEDGE = 0.6", "FULL_KNOWLEDGE = 1e-9"),
        (" if others.any() else 1.0", ""),
        ("return self.knowledge if len", "return 1.0 if len"),
        ("np.ptp(cosines) > _ROUNDING", "np.ptp(cosines) > 0"),
        ("np.fill_diagonal(cosines, -np.inf)", ""),
        ("weights=(0.5, 0.5, 0.0)", "weights=(1.0, 0.0, 0.0)"),
    ),
    *_of(
        "rerank/config/models.py",
        ("beyond_words_weight: Weight = 1.25", "beyond_words_weight: Weight = 0.0"),
        ("lexical_weight: Weight = 0.5", "lexical_weight: Weight = 0.0"),
        ("sparse_weight: Weight = 0.5", "sparse_weight: Weight = 0.0"),
        ("strict=True)] = 30", "strict=True)] = 0"),
        ("strict=True)] = 5", "strict=True)] = 0"),
        ("smoothing_weight: Weight = 0.25", "smoothing_weight: Weight = 0.0"),
        tests="rerank/rankers/test_fused_scores.py",
    ),
    *_of(
        "rerank/rankers/pe_rank.py", ("(1 - max(shared, 0.0))", "1.0"), ("refitted(parts, scores)", "parts.sum(axis=1)")
    ),
    *_of(
        "rerank/util/word_table.py",
        ("min(self.frequencies.values(), default=0) / 2", "0"),
        tests="rerank/rankers/test_lexical.py",
    ),
    *_of(
        "rerank/rankers/lexical.py",
        ("WEIGHT_DEVIATION = 0.5", "WEIGHT_DEVIATION = 1e-9"),
        ("counts / (counts + norms)", "counts"),
        ("np.maximum(1 + changes, 0.0)", "(1 + changes)"),
        ("query.word_table or ", ""),
    ),
    *_of(
        "rerank/rankers/first.py",
        ("torch.log_softmax(logits[: len(window.passages)], dim=0)", "logits[: len(window.passages)]"),
        ("(*prompt.token_ids, self.identifiers.bracket_id)", "(*prompt.token_ids,)"),
    ),
    *_of(
        "rerank/prompting/sanitize.py",
        ('text = " ".join(text.split())', "text = text.strip()"),
        ('return markup.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)', "return text"),
        ("re.IGNORECASE", "0"),
        ("text.isascii() and len(text) > 5", "text.isascii() and len(text) > 1"),
    ),
    *_of(
        "rerank/prompting/identifiers.py",
        ("if len(after) == len(before) + 1 and after[:-1] == before:", "if True:"),
        ('has_capitals = _decoded(tokenizer, _plain_ids(tokenizer, "A")) == "A"', "has_capitals = True"),
    ),
    *_of(
        "rerank/prompting/tokens.py",
        ("_MARGIN_TOKENS = 128", "_MARGIN_TOKENS = 0"),
        ("room -= length + SLACK_TOKENS", "room -= length"),
        ("if limit < _MIN_PASSAGE_TOKENS:", "if limit < 0:"),
        ("text[: ends[tokens - 1]]", "text[: ends[tokens - 2]]"),
        ("            ids += of_border[self._word_tokens :]", "            ids += of_border"),
        ("if text == passage.text and _is_gap(prompt, at + len(text)):", "if text == passage.text:"),
    ),
    *_of(
        "rerank/retrieval/hybrid.py",
        ("enumerate(run, start=1)", "enumerate(run, start=0)"),
        ("weight * z.get(passage, lowest)", "weight * z.get(passage, 0.0)"),
        ("values = values / np.abs(values).max()", "values = values / 1.0"),
    ),
    *_of(
        "rerank/retrieval/feedback.py",
        ("(mask.sum(dim=-1, keepdim=True) // 2)", "mask.sum(dim=-1, keepdim=True)"),
        ("_ORDER_RANGE = 8.0", "_ORDER_RANGE = 1.0"),
        ("            updated.copy_(_project(updated, original, settings.min_cosine))", "            pass"),
        ("_range(teacher, mask) / 2", "_range(teacher, mask)"),
        ("_range(original, mask) / 2", "_range(initial, mask) / 2"),
        ("if candidate.doc_id not in known", ""),
        ("deadline_s - options.answer_margin_s)\n        positions", "deadline_s)\n        positions"),
    ),
    *_of(
        "rerank/retrieval/losses.py",
        ("(ranks[:, :, None] + ranks[:, None, :])", "(ranks[:, :, None] * ranks[:, None, :])"),
        ("(equal.to(relevance.dtype) + 1) / 2", "1"),
        tests="training/trainer/test_losses.py",
    ),
    *_of(
        "training/rerank_training/trainer/losses.py",
        ("pair_losses(scores) / math.log(2)", "pair_losses(scores)"),
        (".abs().clamp(min=1).to(scores.dtype)", ".abs().clamp(min=2).to(scores.dtype)"),
        ("grades = relevance.clamp(min=0)", "grades = relevance"),
        ("sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)", "sum(dim=-1)"),
        ("return mask.sum(dim=-1) >= 2", "return mask.sum(dim=-1) >= 1"),
        (".sum() / contributes.sum().clamp(min=1)", ".mean()"),
    ),
    *_of(
        "rerank/service/limits.py",
        ("self._ranks.pop(peer, 0) or -1", "-1"),
        ("        if size > SMALL_MESSAGE:\n", "        if size:\n"),
        ("        self.accounts.release(usage, Shared.BYTES)", "        pass"),
        ("        if self.unread is not None:\n            self._calls.hang_up(self)", "        pass"),
        ("asyncio.timeout(0 if calls.is_drained or self.usage.ended_by else None)", "asyncio.timeout(None)"),
        ("        self.accounts.leave(call.usage)", "        pass"),
        ("for call in reversed(self._calls.values()):", "for call in self._calls.values():"),
    ),
    *_of(
        "rerank/engine/accounts.py",
        ("if held and held + amount > limit:", "if held + amount > limit:"),
        (" or not self._held[kind]:", ":"),
        ("_MAX_ENDING = 100", "_MAX_ENDING = 1000"),
        ("for is_idle in (True, False):", "for is_idle in (False, True):"),
        ("key=left.__getitem__, reverse=True", "key=left.__getitem__"),
        ("(left[name] == needed and not is_idle)", "left[name] == needed"),
        ("(left[name] == needed and not is_idle)", "False"),
        ("if is_idle else reversed(calls)", "if not is_idle else reversed(calls)"),
        ("            left[call.name] -= call.held[kind]\n", ""),
        ("            del account.calls[usage]", "            pass"),
    ),
    *_of(
        "rerank/service/requests.py",
        ('    _between("feedback.min_cosine", feedback.min_cosine, 0, _MAX_MIN_COSINE)', "    pass"),
        ("if most > 1 and candidates * most > limit:", "if most > 1 and candidates > limit:"),
        ("if passage.score is not None and not math.isfinite(passage.score):", "if False:"),
        ("min(_DEFAULT_DEPTH, limits.max_candidates)", "_DEFAULT_DEPTH"),
        ("if len(doc_ids) < len(candidates):", "if False:"),
    ),
    *_of(
        "rerank/access/keys.py",
        ('if scheme.lower() != "bearer" or not key:', "if not key:"),
        ("self._text, before = text, {key", "_, before = text, {key"),
        ("hash_of_key(key.strip())", "hash_of_key(key)"),
        ("    if name in [key.name for key in keys or ()]:", "    if False:"),
    ),
    *_of(
        "rerank/ports/http/call.py",
        ("dict(reversed(self._headers))", "dict(self._headers)"),
        ("float(header) / 1000", "float(header)"),
        ("if length.isdecimal() and int(length) > self._max_bytes:", "if False:"),
        ("        if len(given) != 1:", "        if not given:"),
    ),
    *_of(
        "rerank/reranking/relevance.py",
        ("known.get(text) if text.strip() else 0.0", "known.get(text, 0.0) if text.strip() else 0.0"),
        ("            if not math.isnan(value):\n", "            if True:\n"),
        ("item.relevance >= min_relevance", "item.relevance > min_relevance"),
        ("kept = unknown if ranking.trace.failure else set[int]()", "kept = unknown"),
        ("[: options.top_n or None]", ""),
    ),
    *_of(
        "rerank/config/loading.py",
        (
            '{**({"listen": given} if isinstance(given, str) else given), **override}',
            '{**override, **({"listen": given} if isinstance(given, str) else given)}',
        ),
        ("if model.name not in replaced]", "]"),
        ("0 < len(names) < _MAX_STAGES", "0 < len(names)"),
    ),
    *_of(
        "rerank/readers/qrels.py",
        ("return max(int(relevance), 0)", "return int(relevance)"),
        ("id_ if id_ in known else encoded.get(to_column(id_), id_)", "encoded.get(to_column(id_), id_)"),
        ("if self._separator is None:\n            query_id", "if True:\n            query_id"),
    ),
    *_of("rerank/readers/queries.py", ("names[0] in _ID_NAMES and names[1] in _TEXT_NAMES", "names[0] in _ID_NAMES")),
    *_of(
        "rerank/retrieval/dense.py",
        ("depth = min(depth, self.passages)", "pass"),
        ("sorted((-float(score), int(row))", "list((-float(score), int(row))"),
        ("zip(scores, rows, strict=True) if row >= 0)", "zip(scores, rows, strict=True))"),
        ("rows = np.sort(rows[rows >= 0])", "rows = np.sort(rows)"),
        (
            "next(missing) if query.vector is None else query.vector",
            "next(missing) if query.vector is None else 0 * query.vector",
        ),
    ),
    *_of(
        "rerank/util/combining.py",
        ('unicodedata.normalize("NFC", stream_safe(text))', 'unicodedata.normalize("NFKC", stream_safe(text))'),
        ('unicodedata.normalize("NFC", stream_safe(text))', 'unicodedata.normalize("NFC", text)'),
    ),
    *_of(
        "eval/rerank_eval/measures.py",
        ("qrel.query_id == qrel.doc_id and qrel.relevance > 0", "qrel.query_id == qrel.doc_id"),
        ("max(0.0, end - max(start, busy_until))", "max(0.0, end - start)"),
        ("busy_until = max(busy_until, end)", "busy_until = end"),
        ("key=lambda doc: (doc.score, doc.doc_id), reverse=True", "key=lambda doc: -doc.score"),
        ("prefill = (tokens - decode_tokens,", "prefill = (tokens,"),
    ),
    *_of(
        "eval/rerank_eval/statistics.py",
        ("highest = max(highest, min(1.0,", "highest = max(0.0, min(1.0,"),
        ("differences[np.abs(differences) < _TIE] = 0.0", "pass"),
        ("np.std(values, ddof=1)", "np.std(values)"),
        ("self.p < SIGNIFICANT and self.interval[0] > 0", "self.p < SIGNIFICANT"),
    ),
    *_of(
        "eval/rerank_eval/datasets.py",
        ("    if settings.limit:\n        return []\n", ""),
        ("(named is None or query_id in named)", "named is None"),
        tests="eval/test_overlap.py",
    ),
    *_of(
        "training/rerank_training/lists/training_list.py",
        ("max(item.relevance) > min(item.relevance)", "max(item.relevance) > 0"),
        ("lambda _: {passage.doc_id for request in requests() for", "lambda _: {passage for request in [] for"),
        ("if share > _MAX_BAD_SHARE or not valid:", "if not valid:"),
    ),
    *_of(
        "training/rerank_training/lists/sampling.py",
        ("required = [random.choice(relevant)] if relevant else []", "required = []"),
        ("max(best.get(first, 0.0), grades[candidate.doc_id])", "grades[candidate.doc_id]"),
        ("for i in sorted(required + sampled)", "for i in required + sampled"),
    ),
    *_of(
        "training/rerank_training/trainer/windows.py",
        ("== max(item.relevance)]", ">= 0]"),
        ("            positions.sort()", "            pass"),
        ('f"{self._seed}/order/{epoch}"', 'f"{self._seed}/order"'),
    ),
    *_of(
        "training/rerank_training/trainer/ranking_trainer.py",
        ("            terms = terms * shares * self.current_gradient_accumulation_steps\n", ""),
    ),
    *_of(
        "training/rerank_training/trainer/run.py",
        ("        if not state.global_step:\n            values", "        if True:\n            values"),
        ("    if change.difference > 0:\n", "    if change.difference >= 0:\n"),
        tests="training/trainer/test_gain.py",
    ),
    *_of("rerank/protobuf/messages.py", ("relevance=item.relevance,", "relevance=item.relevance or 0.0,")),
    *_of(
        "rerank/access/addresses.py",
        ("if int(port) > _MAX_PORT:", "if False:"),
        ("if any(not ipaddress", "if all(not ipaddress"),
        ("len(resolved) > 1)", "False)"),
    ),
    *_of(
        "rerank/util/addresses.py",
        ('f"{_LOOPBACK_OF.get(host, host)}:{port}"', "address"),
        tests="rerank/access/test_addresses.py",
    ),
    *_of(
        "rerank/access/tls.py",
        ("tls.client_ca is not None)\n", "False)\n"),
        ("        self._version = version\n", ""),
        ("        context.verify_mode = ssl.CERT_REQUIRED\n", ""),
        tests="rerank/ports/http/test_server.py",
    ),
    *_of(
        "rerank/ports/connections.py",
        ("silent_ms[client] = -1 if client in busy else", "silent_ms[client] ="),
        ('return host.removeprefix("::ffff:"), port', "return host, port"),
    ),
    *_of(
        "rerank/ports/health.py",
        ("            if status != last:", "            if True:"),
        ("        if not self._is_shutting_down:", "        if True:"),
        ("next(_health(model) for model in models if model.is_default)", "_health(models[0])"),
        ("        if service == LIVENESS:", "        if False:"),
    ),
    *_of(
        "rerank/ports/grpc/handlers.py",
        ("if len(message) > FIELDS_PER_CANDIDATE * limits.max_candidates:", "if False:"),
        ("if len(message) > _MAX_SHORT_BYTES:", "if False:"),
        ("math.inf if remaining_s is None else", "math.inf if True else"),
        ('only_value(self._headers, "authorization")', 'dict(self._headers).get("authorization")'),
        tests="rerank/ports/grpc/test_bad_requests.py rerank/ports/grpc/test_hostile_messages.py",
    ),
    *_of(
        "rerank/integrations/mcp/tools.py",
        ('{"ordered": False} | options', '{"ordered": True} | options'),
        ('"top_n": _SEARCH_TOP_N, ', ""),
        (" if not model.problem]", "]"),
        ('({"reason": execution.reason} if execution.reason else {})', "{}"),
        tests="rerank/integrations/test_mcp.py",
    ),
    *_of("rerank/integrations/inspector/routes.py", ("        response.headers.update(_HEADERS)\n", "")),
    *_of(
        "rerank/retrieval/bm25.py",
        ("search(nfc(query.text)", "search(query.text"),
        ("nfc(text)}", "text}"),
        ("        n += len(part)\n", "        n += 1\n"),
        ("int(reader.docFreq(self._term(_FIELD, stem)))", "1"),
    ),
    *_of(
        "rerank/retrieval/build_folder.py",
        ("fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB"),
        ("if begun == plan and not damage:", "if begun == plan:"),
        ("if name in self.seconds:", "if False:"),
        ("if begun and begun != plan and not replace_others:", "if False:"),
    ),
    *_of(
        "rerank/retrieval/parts.py",
        ("sum(len(array) for array in read_parts(parts, name))", "len(first) * len(parts)"),
        tests="rerank/retrieval/test_shards.py",
    ),
    *_of(
        "rerank/retrieval/shards.py",
        ("if not file.exists()]", "]"),
        ("        unfinished.unlink()\n", "        pass\n"),
    ),
    *_of("rerank/retrieval/build.py", ("2 * rows * self", "rows * self")),
    *_of(
        "rerank/retrieval/sparse_store.py",
        ("np.cumsum(counts, dtype=np.int64)", "counts"),
        ("bool(self._truncated[row])", "False"),
        ("int(terms[-1]) >= self._vocabulary_size", "int(terms[-1]) > self._vocabulary_size"),
        ("or (np.diff(self._offsets) < 0).any()", ""),
    ),
    *_of(
        "eval/rerank_eval/runs.py",
        ("if path.is_file() and path.read_bytes() != text.encode():", "if path.is_file():"),
        ('text[: text.rfind(b"\\n") + 1]', "text"),
        ("            file.truncate(size)\n", ""),
        ("if changed := differences(stored, self._fingerprint):", 'if changed := "":'),
        ("/ 1000 * len(others)", "/ 1000"),
    ),
    *_of(
        "rerank/access/keys.py",
        ("        with locked(path):\n", "        if True:\n"),
        ("        if text == self._text:\n", "        if True:\n"),
    ),
    *_of(
        "rerank/checkpoints/counted_files.py",
        ("_MAX_OTHER_VALUES = 2000", "_MAX_OTHER_VALUES = 2_000_000"),
        ("(tensors := file.read(size).count(_TENSOR)) > _MAX_TENSORS", "(tensors := 0)"),
    ),
    *_of(
        "rerank/inference_servers/bounded_stream.py",
        ("min(max_bytes, self._piece)", "max_bytes"),
        ("        self._left -= len(content)\n", ""),
    ),
    *_of(
        "rerank/ports/http/hosts.py",
        ('matched["name"].lower() in self._names', "True"),
        (' or _is_address(matched["name"])', ""),
        tests="rerank/ports/http/test_server.py rerank/telemetry/test_metrics.py",
    ),
    *_of(
        "rerank/ports/http/metrics.py",
        ("middleware=own_hosts", "middleware=[]"),
        tests="rerank/telemetry/test_metrics.py",
    ),
    *_of("rerank/readers/rows.py", ("        last = number\n", "")),
    *_of("rerank/retrieval/store.py", ("(length := _utf16_units(passage.text))", "(length := len(passage.text))")),
    *_of(
        "rerank/retrieval/dense.py",
        ("np.where(rows < 0, rows, rows + first)", "rows"),
        ("if free is not None and size > free:", "if False:"),
    ),
)
