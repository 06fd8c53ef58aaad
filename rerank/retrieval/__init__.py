"""The first stage: BM25 (Lucene), dense (FAISS), both fused; and the index that holds what they read."""
