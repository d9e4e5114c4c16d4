"""What a type checker says about programs that use holdfast, right ones and wrong ones."""
