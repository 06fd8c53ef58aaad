"""The inspector: a page at / of the HTTP port shows what reranking does to a query; another shows an evaluation."""
