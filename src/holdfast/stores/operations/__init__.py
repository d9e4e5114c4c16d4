"""Operations: every decision procedure of a store, written once and used by all stores."""
