terraform {
  required_version = ">= 1.9"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.25"
    }
  }
}

variable "name" {
  type        = string
  description = "Prefix of every name."
}

variable "monthly_usd" {
  type        = number
  description = "What the whole account may cost in a month before somebody is told."

  validation {
    condition     = var.monthly_usd > 0
    error_message = "monthly_usd must be more than 0."
  }
}

variable "emails" {
  type        = list(string)
  description = "Who is told."

  validation {
    condition     = length(var.emails) > 0 && length(var.emails) <= 10 && alltrue([for each in var.emails : strcontains(each, "@")])
    error_message = "emails must be 1 to 10 addresses."
  }
}

variable "tags" {
  type        = map(string)
  description = "Tags of everything that takes some."
  default     = {}
}

# Of the whole account: a filter by tag stays silent until somebody has activated that tag for billing.
resource "aws_budgets_budget" "this" {
  name         = "${var.name}-monthly"
  budget_type  = "COST"
  limit_amount = tostring(var.monthly_usd)
  limit_unit   = "USD"
  time_unit    = "MONTHLY"
  tags         = var.tags

  dynamic "notification" {
    for_each = { ACTUAL = 80, FORECASTED = 100 }

    content {
      notification_type          = notification.key
      threshold                  = notification.value
      threshold_type             = "PERCENTAGE"
      comparison_operator        = "GREATER_THAN"
      subscriber_email_addresses = var.emails
    }
  }
}
