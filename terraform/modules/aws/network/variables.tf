variable "name" {
  type        = string
  description = "Prefix of every name."
}

variable "cidr" {
  type        = string
  description = "Addresses of the network, a /16: a /20 for each zone's nodes and pods, a /24 for its load balancer."
  default     = "10.40.0.0/16"

  validation {
    condition     = can(cidrhost(var.cidr, 0)) && endswith(var.cidr, "/16")
    error_message = "cidr must be an IPv4 /16, such as 10.40.0.0/16."
  }
}

variable "zones" {
  type        = number
  description = "Availability zones to spread over."
  default     = 2

  validation {
    condition     = var.zones >= 2 && var.zones <= 6
    error_message = "zones must be 2 to 6: EKS wants two at least."
  }
}

variable "nat_per_zone" {
  type        = bool
  description = "A NAT gateway in each zone, so that one zone's loss leaves the others their way out; else one for all."
  default     = false
}

variable "flow_log_days" {
  type        = number
  description = "Days that the network's flow log is kept; 0 for none."
  default     = 30

  validation {
    condition     = contains([0, 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731], var.flow_log_days)
    error_message = "flow_log_days must be 0 or a retention that CloudWatch knows: 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545 or 731."
  }
}

variable "kms_key_arn" {
  type        = string
  description = "Key that the flow log is encrypted with; it must let CloudWatch Logs use it."
}

variable "tags" {
  type        = map(string)
  description = "Tags of everything that takes some."
  default     = {}
}
