variable "name" {
  type        = string
  description = "Prefix of every name."
}

variable "kms_key_arn" {
  type        = string
  description = "Key that weights are encrypted with."
}

variable "old_weights_days" {
  type        = number
  description = "Days that replaced or deleted weights can still be had back."
  default     = 30

  validation {
    condition     = var.old_weights_days >= 1
    error_message = "old_weights_days must be 1 or more."
  }
}

variable "force_destroy" {
  type        = bool
  description = "Let `terraform destroy` delete the weights as well."
  default     = false
}

variable "tags" {
  type        = map(string)
  description = "Tags of everything that takes some."
  default     = {}
}
