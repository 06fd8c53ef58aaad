"""The inspector: a web page that shows what reranking does to a query, served at / of the HTTP port."""
