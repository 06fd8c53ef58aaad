"""First-stage retrieval: the index, BM25 (Lucene), dense (FAISS) and hybrid retrievers, and relevance feedback."""
